// Transfers between stages against boxing::execute(), by ranks that are threads or processes.
#pragma once

#include <string>

#include "boxing/prepared_cases.h"
#include "holon/boxing/point_to_point.h"

namespace holon::testing_boxing {

// What is wrong with this rank's result over some rounds; "" for nothing. All ranks of both placements call it.
std::string transfer_is_wrong(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, int channel,
                              bool strided, bool exact = true);

// Every pair, of rows and of grids: throws what is wrong. For a world of four.
void check_transfers();

// Some of the pairs in a world of four on several hosts, whose sums may be taken in another order.
void check_transfers_between_hosts();

// Sends memory that peers do not reach. Throws what is wrong. For two ranks that are processes.
void check_private_memory();

// A pipeline of one rank a stage in the order of 1F1B: micro-batches go forth and back through buffers that are used
// again. Throws what is wrong.
void check_pipeline(int stages, int micro_batches);

// Rank 1 is killed where rank 0 waits for its send.
void die_before_posting();

}  // namespace holon::testing_boxing
