// The secret that the ranks of one program share.
#pragma once

#include <string>

namespace holon::comm {

// HOLON_STORE_TOKEN; else what is in the file HOLON_STORE_TOKEN_FILE, which the first of all makes, readable by its
// user alone, and the others wait for; else "". Errors: the file cannot be written or read, is empty, or does not come
// within limit_s.
std::string store_token(bool first, double limit_s);

}  // namespace holon::comm
