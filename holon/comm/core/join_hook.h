// What an upper layer does when the processes of a world are connected, such as agreeing on figures: comm calls it
// without knowing what it is.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace holon::comm {

struct Joined {
  int rank = 0, world_size = 1;
  std::vector<int> host_of_rank;  // empty: all on one host
  int cores = 1;                  // that the ranks of this host share
  // Rank 0's text, on every rank; the others' is of no account. Errors: rank 0 does not say it in time.
  std::function<std::string(const std::string& text)> share;
};

// Set before main() by the layer that wants to know.
void set_join_hook(void (*hook)(const Joined&));

// Collective: at the end of joining, when communicator() works. Errors: the hook's.
void run_join_hook(const Joined& joined);

}  // namespace holon::comm
