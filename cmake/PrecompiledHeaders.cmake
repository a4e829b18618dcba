# What most sources include is compiled once for all of them (target_precompile_headers). Headers of the system only: no
# change to one of Holon's rebuilds more than what includes it, and with no path of this folder in what is compiled, clones
# share a compiler cache. Every source still includes what it uses: ThreadSanitizer's build has none of this.
set(HOLON_PRECOMPILED_HEADERS
    <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <exception> <filesystem>
    <fmt/format.h> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view>
    <thread> <tuple> <unordered_map> <unordered_set> <utility> <vector>)
