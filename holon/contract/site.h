// Where in the user's program something happens, in a form that stays when other lines are added or removed.
#pragma once

#include <string>
#include <string_view>

namespace holon::contract {

// A line of the program. Two lines of one function with the same text are one.
struct Site {
  std::string file;      // without its folder; "" where the line is not known
  std::string function;  // "Block.forward"
  std::string text;      // of the line, with single spaces
  int line = 0;          // the number of the first such line that was seen
  std::string path;      // of the file, as the host language has it

  std::string str() const;    // "train.py  Block.forward  y = self.fc(x)": what a file has, and what identifies it
  std::string where() const;  // "train.py:31, in Block.forward: y = self.fc(x)"
  bool operator==(const Site& o) const { return file == o.file && function == o.function && text == o.text; }
};

// The user's line that runs on this thread, as the host language knows it; else what comm::set_call_site() was told
// last. Lives as long as the rank.
const Site* current_site();
// That of "train.py:31"; the function is that of the line that runs.
const Site* site_at(std::string_view file_and_line);

// Whether a line of the site's file still has this text, and whether it still defines the function. True where the file
// cannot be read.
bool still_there(const Site& site, std::string_view text, std::string_view function);

// With every run of white space as one space, and none at the ends.
std::string single_spaced(std::string_view text);

}  // namespace holon::contract
