// CRC-32C (Castagnoli), as iSCSI, ext4 and others have it; by the processor's own instructions where there are any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace holon::data {

// crc: of the bytes before, 0 at first. crc32c("123456789") is 0xe3069283.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The same without those instructions: a table, byte by byte.
uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace holon::data
