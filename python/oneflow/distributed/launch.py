"""As holon.distributed.launch: python -m oneflow.distributed.launch --nproc_per_node N PROGRAM [ARGUMENTS]."""

from holon.distributed.launch import main

if __name__ == "__main__":
    main()
