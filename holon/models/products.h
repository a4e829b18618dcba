// The modules of a model that multiply by a weight, of whatever class.
#pragma once

#include <string_view>
#include <vector>

#include "holon/nn/linear.h"

namespace holon::models {

// All of them. Not experts, whose weights are one tensor.
std::vector<nn::ProductModule> products_of(const nn::Module& model);

// The last part of a path.
std::string_view last_name(std::string_view path);

// Of a module's path: whether it gives the logits; whether it is a router, which decides where a token goes.
bool is_head(std::string_view path);
bool is_router(std::string_view path);

}  // namespace holon::models
