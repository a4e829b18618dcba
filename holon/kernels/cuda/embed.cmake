# The texts of headers as a C++ source: cmake -DROOT=... -DHEADERS="a;b" -DOUTPUT=... -P embed.cmake
set(made "#include \"holon/kernels/cuda/rtc.h\"\n\nnamespace holon::kernels::cuda {\n\nnamespace {\nconst EmbeddedHeader kHeaders[] = {\n")
foreach(header ${HEADERS})
  file(READ ${ROOT}/${header} text)
  string(APPEND made "{\"${header}\",\nR\"holon(${text})holon\"},\n")
endforeach()
string(APPEND made "};\n}  // namespace\n\nstd::span<const EmbeddedHeader> embedded_headers() { return kHeaders; }\n\n}  // namespace holon::kernels::cuda\n")
file(WRITE ${OUTPUT} "${made}")
