# What most sources include is compiled once for all of them (target_precompile_headers). Headers of the system only: no
# change to one of Holon's rebuilds more than what includes it, and with no path of this folder in what is compiled, clones
# share a compiler cache. Every source still includes what it uses: ThreadSanitizer's build has none of this.
set(HOLON_PRECOMPILED_HEADERS
    <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <exception> <filesystem>
    <fmt/format.h> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view>
    <thread> <tuple> <unordered_map> <unordered_set> <utility> <vector>)
# ccache takes a compiled header at the place of the next one for a part of what it is compiled from.
if(NOT HOLON_PRECOMPILED_BEFORE STREQUAL HOLON_PRECOMPILED_HEADERS)
  file(GLOB_RECURSE old_headers ${PROJECT_BINARY_DIR}/cmake_pch.hxx.gch)
  if(old_headers)
    file(REMOVE ${old_headers})
  endif()
  set(HOLON_PRECOMPILED_BEFORE "${HOLON_PRECOMPILED_HEADERS}" CACHE INTERNAL "")
endif()
