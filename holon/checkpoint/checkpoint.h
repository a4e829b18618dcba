// save() and load(): whole objects, such as state dicts, in files that other programs read, too (safetensors). No code
// is ever loaded from a file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "holon/base/file_path.h"
#include "holon/checkpoint/core/key_map.h"
#include "holon/checkpoint/core/value.h"
#include "holon/nn/module.h"

namespace holon {

// What save() writes: Holon's own files, or a folder as Hugging Face's libraries have them.
enum class Format { kHolon, kHuggingFace };

struct SaveOptions {
  // The rank that gets global tensors whole, one after the other, and writes one file, for all. Nothing: see below.
  std::optional<int> global_dst_rank = {};
  Format format = Format::kHolon;
  // Of kHuggingFace: the most bytes of tensors in one file; a tensor that is larger has a file for itself.
  uint64_t shard_bytes = 5'000'000'000;
  // The map by which load() reads the tensors again: they are saved as what it is made of, by its inverse. The value is
  // a dict of tensors, and of such dicts.
  std::optional<checkpoint::KeyMap> key_map = {};
};

struct LoadOptions {
  // The only rank that reads: every tensor becomes a global one of which this rank holds the whole (B on its
  // placement).
  std::optional<int> global_src_rank = {};
  // Where every tensor goes, as a global one, and its sbp there: each rank reads its own part only. Tensors that
  // have no such axis are broadcast. With global_src_rank they are sent there.
  Placement placement = {};
  NdSbp sbp = sbp::broadcast();
  // Every tensor becomes a local one on this device, whole on each rank that calls.
  std::optional<Device> device = {};
  // With one of these the result is a dict of tensors by their names in the file ("model.fc1.weight"), without other
  // values: those that begin with the prefix, which is removed; made into others by the map; of these, those that are
  // selected; renamed. The functions depend on the name alone, as the map has made it, which is without the prefix.
  // strict: it is an error (ValueError) if there are none.
  std::string prefix = {};
  std::optional<checkpoint::KeyMap> key_map = {};
  std::function<bool(const std::string& name)> select = {};
  std::function<std::string(const std::string& name)> rename = {};
  bool strict = true;
  // The sbp on the placement by the tensor's name, without the prefix, in place of sbp.
  std::function<NdSbp(const std::string& name)> sbp_of = {};
  // Each tensor becomes one as that of its name here, such as a module's state_dict(): in its layout, or local on its
  // device; its dtype is that of the file. Shapes must be the same and, if strict, the names; otherwise tensors of
  // other names are not read. Not together with placement, device, sbp_of and global_src_rank.
  nn::StateDict like = {};
  // The floating point dtype that quantised weights are read as: float8 that is scaled by blocks, with its scales
  // (NAME_scale_inv), and MXFP4 (NAME_blocks and NAME_scales, as NAME). Nothing: float8 as float32, without scales.
  std::optional<DType> dequantize = {};
};

// Writes a value to `path`; what was there before stays until all of the new is on the disk.
//  - With global_dst_rank, one file. Tensors that are local, and all other values, are that rank's. Collective over the
//    world.
//  - Without, and with global tensors among the values: a folder, into which each rank writes its own parts and an
//    index. What is not global is rank 0's. Collective over the world.
//  - Without, and with none: one file, written by each rank that calls.
//
//  - In the format kHuggingFace, a folder of model.safetensors, or of model-0000i-of-0000n.safetensors and
//    model.safetensors.index.json. The value is a dict of tensors, and of such dicts, whose keys are joined by dots.
//    With global tensors, every rank writes its own parts into these files: collective over the world. What is not
//    global has to be the same on all ranks, and rank 0 writes it.
//
// If `path` is a folder, the one file goes into it. Errors: the ranks' global tensors are not alike; a rank cannot
// write: an error of one rank is raised on all. The value: see checkpoint::flatten().
void save(const checkpoint::Value& value, const FilePath& path, const SaveOptions& options = {});

// Returns what save() wrote, or, as a dict, the tensors of any safetensors file, of a folder of Hugging Face's, or of
// its index; or what torch.save() wrote, if it is of tensors and plain containers. Tensors of these are local; those of
// a folder that were global are so again, with their sbp, or, if the world lacks a rank of their placement, over all
// its ranks; the options change that. Each rank reads only what it needs. Collective over the world where results are
// global. Errors (RuntimeError), naming the file: it cannot be opened, is damaged in whatever way, or is something
// else.
checkpoint::Value load(const FilePath& path, const LoadOptions& options = {});

namespace checkpoint {

// How many bytes of checkpoints' files, and of tensors from other jobs (receive()), this rank has read so far.
uint64_t bytes_read();

}  // namespace checkpoint

}  // namespace holon
