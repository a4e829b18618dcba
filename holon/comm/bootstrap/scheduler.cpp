#include "holon/comm/bootstrap/scheduler.h"

#include <cstdint>
#include <cstdlib>

#include "holon/base/error.h"

namespace holon::comm {

namespace {

std::string env(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The same on all processes of a job, and hardly that of another job on the host.
int port_of_job(const std::string& identity) {
  uint32_t h = 2166136261u;
  for (char c : identity) h = (h ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(h % 10000);
}

}  // namespace

std::string first_of_nodelist(const std::string& list) {
  std::string first;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      first += list[i];
      continue;
    }
    for (++i; i < list.size() && list[i] != '-' && list[i] != ',' && list[i] != ']'; ++i) first += list[i];
    while (i < list.size() && list[i] != ']') ++i;
  }
  return first;
}

RendezvousAddress rendezvous_address() {
  RendezvousAddress place;
  place.host = env("MASTER_ADDR");
  if (place.host.empty() && !env("SLURM_STEP_NUM_TASKS").empty())
    place.host = first_of_nodelist(env("SLURM_STEP_NODELIST"));
  if (place.host.empty()) place.host = "127.0.0.1";

  std::string text = env("MASTER_PORT");
  if (text.empty()) {
    place.port = 29500;
    if (std::string step = env("SLURM_STEP_NUM_TASKS"); !step.empty())
      place.port = port_of_job(env("SLURM_JOB_ID") + "." + env("SLURM_STEP_ID"));
    else if (std::string job = env("PMIX_NAMESPACE"); !job.empty())
      place.port = port_of_job(job);
    return place;
  }
  char* end = nullptr;
  long port = std::strtol(text.c_str(), &end, 10);
  if (*end || port < 1 || port > 65535)
    fail_value("MASTER_PORT=\"{}\" is not a port; set it to a number from 1 to 65535, the same on all ranks.", text);
  place.port = static_cast<int>(port);
  return place;
}

}  // namespace holon::comm
