# -DHOLON_SANITIZE=address,undefined or thread
set(HOLON_SANITIZE "" CACHE STRING "Sanitizers to build with")
if(HOLON_SANITIZE)
  add_compile_options(-fsanitize=${HOLON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${HOLON_SANITIZE})
endif()
