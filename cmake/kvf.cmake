# How every module, test and fuzzer of the tree is declared.
#
#   kvf_module(base SOURCES src/a.c DEPS kvf_x PkgConfig::Y [PRIVATE_DEPS ...])   library kvf_<name>, public headers in include/
#   kvf_test(name SOURCES t.c DEPS kvf_base LABELS unit)             one cmocka program, one ctest entry
#   kvf_fault_test(name ... [EVENT])                               a kvf_test in which each call to the system can be made to fail
#   kvf_fuzzer(name SOURCE f.c DEPS kvf_x CORPUS dir)                replayed over CORPUS as a test; libFuzzer binary under KVF_FUZZ
#
# Flags are target properties, never global: nothing here enables -march=native; a source that needs an instruction set
# names it itself (set_source_files_properties) and is reached only through run-time detection.
include_guard()
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

set(KVF_SANITIZE "" CACHE STRING "sanitizers, e.g. address,undefined or thread")
option(KVF_SLOW_CHECKS "costly invariant checks" OFF)
option(KVF_FUZZ "build libFuzzer binaries (clang)" OFF)

add_library(kvf_flags INTERFACE)
target_compile_options(kvf_flags INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-unused-parameter
  # The numerics discipline (ARCHITECTURE.md, "Same bits") needs the compiler to keep products and sums apart.
  -ffp-contract=off -fno-fast-math -fno-strict-aliasing -fvisibility=hidden)
target_compile_definitions(kvf_flags INTERFACE _GNU_SOURCE _FILE_OFFSET_BITS=64)
if(KVF_SLOW_CHECKS)
  target_compile_definitions(kvf_flags INTERFACE KVF_SLOW_CHECKS=1)
endif()
if(KVF_SANITIZE)
  target_compile_options(kvf_flags INTERFACE -fsanitize=${KVF_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(kvf_flags INTERFACE -fsanitize=${KVF_SANITIZE})
endif()
if(KVF_FUZZ)
  target_compile_options(kvf_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

function(kvf_module name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(kvf_${name} STATIC ${A_SOURCES})
  target_include_directories(kvf_${name} PUBLIC include PRIVATE src)
  target_link_libraries(kvf_${name} PUBLIC ${A_DEPS} PRIVATE kvf_flags ${A_PRIVATE_DEPS} Threads::Threads)
  set_target_properties(kvf_${name} PROPERTIES OUTPUT_NAME kvf_${name})
endfunction()

function(kvf_test name)
  cmake_parse_arguments(A "" "TIMEOUT" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT TARGET PkgConfig::CMOCKA)
    pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
  endif()
  add_executable(test_${name} ${A_SOURCES})
  target_link_libraries(test_${name} PRIVATE kvf_flags ${A_DEPS} PkgConfig::CMOCKA Threads::Threads m)
  target_compile_definitions(test_${name} PRIVATE KVF_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND test_${name} ${A_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  # 77 is the exit status of a test that cannot run here and has printed why.
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABELS}" TIMEOUT ${A_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()

function(kvf_fuzzer name)
  cmake_parse_arguments(A "" "SOURCE;CORPUS" "DEPS" ${ARGN})
  add_executable(replay_${name} ${A_SOURCE} ${CMAKE_SOURCE_DIR}/tests/support/fuzz_replay.c)
  target_link_libraries(replay_${name} PRIVATE kvf_flags ${A_DEPS} Threads::Threads m)
  add_test(NAME fuzz-replay-${name} COMMAND replay_${name} ${A_CORPUS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(fuzz-replay-${name} PROPERTIES LABELS fuzz-replay TIMEOUT 300)
  if(KVF_FUZZ)
    add_executable(fuzz_${name} ${A_SOURCE})
    target_link_libraries(fuzz_${name} PRIVATE kvf_flags ${A_DEPS} Threads::Threads m)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  endif()
endfunction()

# A kvf_test whose calls for memory, files, sockets, threads (EVENT: and libevent's objects) go through tests/support/fault.c.
function(kvf_fault_test name)
  cmake_parse_arguments(A "EVENT" "" "" ${ARGN})
  kvf_test(${name} ${A_UNPARSED_ARGUMENTS})
  set(wrapped malloc calloc realloc free aligned_alloc strdup strndup mmap64 madvise memfd_create posix_fallocate64
    fstat64 stat64 flock fopen64 fread open64 fcntl64 read write getrandom recv recvmsg sendmsg socket bind connect
    getsockname getsockopt setsockopt eventfd pthread_create)
  target_sources(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/fault.c)
  if(A_EVENT)
    target_sources(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/fault_event.c)
    list(APPEND wrapped event_new event_add event_base_new evconnlistener_new)
  endif()
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support)
  list(TRANSFORM wrapped PREPEND LINKER:--wrap=)
  target_link_options(test_${name} PRIVATE ${wrapped})
endfunction()
