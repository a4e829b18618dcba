// How declarations behave while a user's library is being loaded: its static initialisers run inside the loader,
// through which no exception may pass. Errors are kept until it is done. For those who take declarations.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace holon::detail {

class Loading {
 public:
  Loading();  // for this thread, until destroyed
  ~Loading();
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  const std::string& error() const { return error_; }
  // Takes what was declared out of the registry.
  void undo();
  // Checks what only a complete declaration shows. Returns the names of the ops. Errors: see load_library().
  std::vector<std::string> finish();

  static Loading* current();
  void keep_error(std::string text) {
    if (error_.empty()) error_ = std::move(text);
  }
  std::vector<std::string> ops, aliases;
  std::vector<std::string> reads;  // names of attributes
  // What else was declared, and how it is taken back.
  size_t others = 0;
  std::vector<std::function<void()>> undo_others;

 private:
  std::string error_;
  Loading* before_;
};

}  // namespace holon::detail
