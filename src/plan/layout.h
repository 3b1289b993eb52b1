// The entry of a region, for those who need more of it than its range. Pure; thread-safe.
#pragma once
#include "plan/plan.h"

namespace protrain {

// Null where the layout has no such region.
const Layout::Entry* find_entry(const Layout&, Region, Id index);

}  // namespace protrain
