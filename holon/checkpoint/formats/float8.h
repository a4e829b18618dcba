// Floating point numbers of 8 bits, which files hold and Holon computes nothing with: they are read as wider ones.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace holon::checkpoint {

// OFP8 (Open Compute Project, 2023): E4M3 has no infinity and one NaN of each sign, as torch.float8_e4m3fn; E5M2 is
// like float16. E8M0 (OCP Microscaling Formats 1.0): 2^(b - 127), and NaN for 255.
enum class Float8 : uint8_t { kNone, kE4M3, kE5M2, kE8M0 };

// The number of each byte. Pre: kind is not kNone.
const std::array<float, 256>& float8_values(Float8 kind);

// By the name in safetensors, "F8_E4M3"; nullopt: another dtype.
std::optional<Float8> float8_of_format(std::string_view name);

}  // namespace holon::checkpoint
