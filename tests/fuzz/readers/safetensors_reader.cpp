// The header of a safetensors file, and every tensor of a file that it fits; also dequantised.
#include "checkpoint/other_files.h"
#include "holon/base/error.h"
#include "holon/checkpoint/checkpoint.h"
#include "memory_file.h"
#include "reader.h"

using namespace holon;

std::vector<std::string> seeds() {
  using checkpoint::safetensors_of;
  return {safetensors_of({}), safetensors_of({{"a", "F32", {2, 1}, std::string(8, '\1')}, {"b", "BOOL", {}, "\1"}}),
          safetensors_of({{"w", "F8_E4M3", {2, 3}, "abcdef"}, {"w_scale_inv", "F32", {1, 1}, std::string(4, '\1')}}),
          safetensors_of({{"b_blocks", "U8", {1, 16}, std::string(16, '\7')}, {"b_scales", "U8", {1}, "\x7f"}})};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MemoryFile file(data, size);
  for (bool dequantize : {false, true}) try {
      load(file.path(), {.dequantize = dequantize ? std::optional(bfloat16) : std::nullopt});
    } catch (const Error&) {
    }
  return 0;
}
