// Ranks as threads: a world that starts in microseconds, for tests and for programs that use several devices in one
// process.
#pragma once

#include <functional>
#include <span>

namespace holon::comm {

// Runs fn(rank) on n threads, each a rank of its own world with its own Context, and returns when all have ended.
// The cores are shared out among the ranks' OpenMP threads. If a rank throws, the others' waits raise with its reason,
// and the first exception is thrown again here. Pre: n >= 1.
void run_ranks(int n, const std::function<void(int rank)>& fn);

// The same, but rank r plays at being on host host_of_rank[r]: ranks of different hosts share no memory and send each
// other messages, as processes on several hosts do. Pre: host numbers are counted from 0, none is left out.
void run_ranks(std::span<const int> host_of_rank, const std::function<void(int rank)>& fn);

// Waits for all ranks of the world. Collective.
void barrier();

}  // namespace holon::comm
