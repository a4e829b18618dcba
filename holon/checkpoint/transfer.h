// Weights that go from one job to another, such as from training to a server, without files. The jobs may have other
// numbers of ranks and other layouts: each rank that receives asks those that hold what it needs.
//
//   export_to(model.state_dict(), "server:29600");             // all ranks of one job
//   receive_into(model, "server:29600");                       // all ranks of the other
#pragma once

#include <optional>
#include <string>

#include "holon/checkpoint/checkpoint.h"
#include "holon/checkpoint/core/value.h"
#include "holon/nn/module.h"

namespace holon {

struct TransferOptions {
  // How long, in seconds, to wait for the other job to come. After that, HOLON_COMM_TIMEOUT_S applies to each wait.
  double timeout_s = 60;
  // The secret that both jobs know, the same on all ranks; nothing: HOLON_TRANSFER_TOKEN. Required unless the address
  // is of the loopback interface. It is proven and never sent; what follows is neither encrypted nor signed.
  std::optional<std::string> token = {};
};

// Sends a value to the job that receives at `address` ("host:port", "[fd00::1]:29600"), and returns when that has all
// it wants. Global tensors are read from the ranks that hold them; partial sums are summed first. What is not global is
// rank 0's. The tensors must not change meanwhile. Rank 0 connects to the address, and every rank listens for the other
// job at a port of its own. Errors, on all ranks of both jobs: a rank fails, dies or stops, of either job. Errors: no
// job receives there within timeout_s, or it has another token; an address that is not of the loopback interface,
// without a token (ValueError); the ranks' global tensors are not alike. Collective over the world.
void export_to(const checkpoint::Value& value, const std::string& address, const TransferOptions& options = {});

// Returns what another job exports to `address`, at which rank 0 of this one listens until it comes. As load() of a
// folder: global tensors have their sbp, or, if the world lacks a rank of their placement, are over all its ranks; the
// options change that, except for global_src_rank, which is an error. Each rank reads what it needs, from the ranks
// that hold it in turn; of tensors of 1 MiB or more, what several ranks need is read once. Errors, on all ranks: as
// export_to(); the address is not of this host, or in use; nobody exports to it within timeout_s. Collective over the
// world.
checkpoint::Value receive(const std::string& address, const LoadOptions& options = {},
                          const TransferOptions& transfer = {});

// Receives into a module: each tensor in the layout of the module's of that name. Either all tensors are replaced or,
// where there is an error, none. options: prefix, select, rename, strict and dequantize. Collective over the world.
nn::LoadResult receive_into(nn::Module& module, const std::string& address, const LoadOptions& options = {},
                            const TransferOptions& transfer = {});

}  // namespace holon
