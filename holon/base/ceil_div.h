// Division rounded up.
#pragma once

#include <cstdint>

namespace holon {

// n / d for n >= 0 and d > 0, rounded up. It cannot overflow, as (n + d - 1) / d does for sizes and steps near the end
// of int64, which users may give.
constexpr int64_t ceil_div(int64_t n, int64_t d) { return n / d + (n % d != 0); }

}  // namespace holon
