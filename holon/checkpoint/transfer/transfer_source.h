// The tensors that another job exports, as what load() reads from.
#pragma once

#include <memory>
#include <string>

#include "holon/checkpoint/formats/source.h"
#include "holon/checkpoint/transfer/manifest.h"

namespace holon::checkpoint {

// For a rank that receives; from step of together(), as it waits. name: of the other job, for messages. A wait for a
// byte ends after limit_s. Errors of read() (RuntimeError): a rank of the other job is not there or not reachable,
// ends, is silent, or says something else than what was requested; after that, nothing more is read.
std::unique_ptr<Source> transfer_source(Manifest manifest, const std::string& name, const std::string& token,
                                        double limit_s);

}  // namespace holon::checkpoint
