// What a reader of files is given by libFuzzer, and by replay.cpp: any bytes. It may return, or throw holon::Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Files that the reader accepts, to begin with.
std::vector<std::string> seeds();

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
