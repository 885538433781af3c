# cmake -DIN=x.proto -DOUT=copy/x.proto [-DTEXT_AS_BYTES=ON] -P c_copy.cmake
# Makes the copy of a .proto file that protoc-c 1.4 can compile; the bytes on the wire stay the same.
#   optional T x = n;   ->  oneof _x { T x = n; }     (protoc-c knows no proto3 optional; a oneof of one has presence too)
#   string x = n;       ->  bytes x = n;              (with TEXT_AS_BYTES: protobuf-c cuts a char * at a NUL byte)
file(READ "${IN}" text)
string(REGEX REPLACE "optional +([A-Za-z0-9_.]+) +([A-Za-z0-9_]+) *= *([0-9]+) *;" "oneof _\\2 { \\1 \\2 = \\3; }"
  text "${text}")
if(TEXT_AS_BYTES)
  string(REGEX REPLACE "([^A-Za-z0-9_.<])string +([A-Za-z0-9_]+ *= *[0-9]+)" "\\1bytes \\2" text "${text}")
endif()
file(WRITE "${OUT}" "${text}")
