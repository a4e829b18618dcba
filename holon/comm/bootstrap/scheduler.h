// What another engine than holon-launch tells its processes about the store's address: SLURM's srun and Open MPI's
// mpirun. (Who they are, RANK and so on, is read in base/context.)
#pragma once

#include <string>

namespace holon::comm {

struct RendezvousAddress {
  std::string host;
  int port = 0;
};

// MASTER_ADDR and MASTER_PORT; where they are not set, the first node of SLURM_STEP_NODELIST, else this host, and a
// port made from the job's identity, else 29500. Errors: MASTER_PORT is not a port.
RendezvousAddress rendezvous_address();

// The first host of a list as SLURM writes them: "gpu[07-09,12],login" gives "gpu07".
std::string first_of_nodelist(const std::string& list);

}  // namespace holon::comm
