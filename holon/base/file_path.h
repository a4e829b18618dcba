// The name of a file or folder as an argument: text, or a std::filesystem::path, whose header would be a fifth of what
// holon.h takes to compile.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>

namespace holon {

class FilePath {
 public:
  FilePath() = default;
  FilePath(const char* name) : name_(name) {}
  FilePath(std::string_view name) : name_(name) {}
  FilePath(std::string name) : name_(std::move(name)) {}
  // A std::filesystem::path, or what is like it.
  template <class P>
  requires requires(const P& path) {
    { path.native() } -> std::convertible_to<const std::string&>;
  }
  FilePath(const P& path) : name_(path.native()) {}

  bool empty() const { return name_.empty(); }
  const std::string& string() const { return name_; }

 private:
  std::string name_;
};

}  // namespace holon
