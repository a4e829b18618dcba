// A contract as a value, and as a text file that people review: every boxing of a program, by the line that causes it.
//
//   holon contract 1
//   ranks 4, hosts 1
//   machine copy=...
//
//   == step  train.py  main  optimizer.step()  # 3 times
//
//   model.py  Block.forward  x = self.fc(x)  # 31
//     x12  matmul.w (S(0), B)  float32 [64, 256]  S(0) -> B cpu:0-3  all_gather  most 49152, all 196608 bytes  ...
//
// Lines are known by their text, in order of first execution, so a file changes where communication does. What follows
// "  # " is for people, and ignored.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holon/contract/entry.h"
#include "holon/contract/site.h"
#include "holon/cost/machine.h"

namespace holon::contract {

// What one line of the program moves.
struct Lines {
  Site site;
  std::vector<Entry> entries;
};

// A part of the program that is compared by itself.
struct Section {
  enum class Kind : uint8_t {
    kStart,  // from the beginning to the end of the first step, or of the program where it has none
    kStep,   // each later step that ends at the line `name`
    kEnd,    // after the last step
    kGraph,  // each call of the compiled graph `name`
  };
  Kind kind = Kind::kStart;
  std::string name;
  int64_t times = 0;  // so many were recorded
  std::vector<Lines> lines;
  // Of a graph, how it was compiled: the layouts that calls take (key "linear float32 [4, 8] S(0) cpu:0-1, ...", value
  // "(B, S(0))"), in the order in which they were chosen, alike ones of one key that follow each other as one; and
  // paths that were compared, besides those of the lines.
  struct Layouts {
    std::string call, taken;
    int64_t times = 1;
  };
  std::vector<Layouts> layouts = {};
  std::vector<Entry> paths = {};

  std::string title() const;  // "step  train.py  main  optimizer.step()"
  // Adds an entry to those of its line; one that is there already happens more often.
  void add(const Site& site, Entry entry);
  // That of the line with the key, or nullptr.
  const Entry* find(const Site& site, std::string_view key) const;
};

struct Document {
  int ranks = 1, hosts = 1;
  std::string machine;  // the figures that paths were chosen by (cost/machine.h)
  std::vector<Section> sections;

  const Section* section(Section::Kind kind, std::string_view name) const;
  std::string str() const;
};

// Errors (ValueError): what does not fit, with the file's name and the number of its line.
Document parse_document(std::string_view text, const std::string& file);
Document read_document(const std::string& file);
// By a temporary file that is renamed. Errors (RuntimeError): it cannot be written.
void write_document(const Document& document, const std::string& file);

}  // namespace holon::contract
