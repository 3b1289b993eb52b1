// Files that see LibTorch's headers see its copy of fmt, which is newer than the system's and whose functions its
// libraries do not export. This is their one definition. (The two versions live in different inline namespaces.)
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
