#include "base/edit_distance.h"

#include <gtest/gtest.h>

namespace protrain {
namespace {

TEST(EditDistance, CountsWhatIsInsertedRemovedAndReplaced) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("order", "order"), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("learning_rat", "learning_rate"), 1u);
  EXPECT_EQ(edit_distance("xorder", "order"), 1u);
  EXPECT_EQ(edit_distance("order", "orter"), 1u);
  EXPECT_EQ(edit_distance("oder", "odre"), 2u);  // what changed places counts twice
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("sitting", "kitten"), 3u);
}

}  // namespace
}  // namespace protrain
