/* arm-lower runtime: loads and executes ExecuTorch programs (.pte) on bare metal.
 *
 * No heap, no global state, no I/O. The caller owns all memory and says where it is. The file is not trusted: every
 * offset, index, size, alignment and count in it is checked, so that a bad file ends in an error and never in a
 * fault. The file is used in place and must stay readable (flash is fine) as long as the method is used.
 *
 *     al_program program;
 *     al_error error;
 *     if (al_program_load(&program, pte, pte_size, &error)) ...
 *     al_needs needs;
 *     al_method_needs(&program, "forward", &needs, &error);           // bytes of each block below
 *     al_method *method;
 *     al_method_init(&method, &program, "forward", &memory, &config, &error);
 *     memcpy(al_input(method, 0)->t->data, samples, bytes);           // or al_set_input, which checks
 *     al_execute(method, &error);
 *     const al_value *result = al_output(method, 0);
 *
 * Format: ExecuTorch schema/program.fbs, file identifier ET12, schema version 0.
 */
#ifndef ARM_LOWER_H
#define ARM_LOWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AL_MAX_RANK 16   /* as in ExecuTorch */
#define AL_MAX_ARENAS 4  /* memory ids 1 to 4 */
#define AL_ALIGNMENT 16  /* of arenas, scratch memory and delegate data, in bytes */
#ifndef AL_INSTRUCTION_LIMIT
#define AL_INSTRUCTION_LIMIT 10000000u /* per execution, as in ExecuTorch */
#endif

/* One code for each kind of failure; al_status_text gives the sentence. Numbers are stable: hosts parse them. */
#define AL_STATUSES(X)                                                                        \
  X(AL_OK, 0, "no error")                                                                     \
  X(AL_FILE_TRUNCATED, 1, "the file is shorter than its header says")                         \
  X(AL_FILE_FOREIGN, 2, "not an ExecuTorch program: no ET12 identifier")                      \
  X(AL_FILE_TOO_NEW, 3, "schema version is newer than this runtime")                          \
  X(AL_FILE_MISALIGNED, 4, "the program is not at a 16-byte aligned address")                 \
  X(AL_FILE_CORRUPT, 5, "the file is corrupt")                                                \
  X(AL_FILE_UNSUPPORTED, 6, "the file uses a feature that this runtime does not have")        \
  X(AL_NO_SUCH_METHOD, 10, "the program has no such method")                                  \
  X(AL_KERNEL_MISSING, 11, "an operator has no kernel in this build")                         \
  X(AL_BACKEND_MISSING, 12, "a delegate has no backend in this build")                        \
  X(AL_VALUES_TOO_SMALL, 20, "memory for the value table is too small")                       \
  X(AL_ARENA_TOO_SMALL, 21, "the arena is too small")                                         \
  X(AL_SCRATCH_TOO_SMALL, 22, "NPU scratch memory is too small")                              \
  X(AL_FAST_SCRATCH_TOO_SMALL, 23, "NPU fast scratch memory is too small")                    \
  X(AL_MEMORY_MISALIGNED, 24, "a memory block is not 16-byte aligned")                        \
  X(AL_INPUT_COUNT, 30, "no input or output of this number")                                  \
  X(AL_INPUT_TYPE, 31, "input has the wrong data type")                                       \
  X(AL_INPUT_SHAPE, 32, "input has the wrong shape")                                          \
  X(AL_INPUT_VALUE, 33, "a number differs from the one that the method was made for")         \
  X(AL_ARGUMENTS, 40, "an operator has arguments that its schema does not allow")             \
  X(AL_DTYPE, 41, "a kernel does not take this data type")                                    \
  X(AL_SHAPE, 42, "shapes do not fit the operator")                                           \
  X(AL_RESIZE, 43, "a result does not have the size that the file says")                      \
  X(AL_INDEX, 44, "an index is out of range")                                                 \
  X(AL_VALUE, 45, "an argument has a value that the operator does not allow")                 \
  X(AL_CONSTANT, 46, "an operator would write to a constant")                                 \
  X(AL_UNBOUND, 47, "a tensor has no memory")                                                 \
  X(AL_ENDLESS, 48, "more instructions than the limit")                                       \
  X(AL_DELEGATE_CORRUPT, 50, "the delegate's data is corrupt")                                \
  X(AL_DELEGATE_ARGUMENTS, 51, "the delegate's arguments do not fit its data")                \
  X(AL_NPU_MISSING, 60, "no NPU answers")                                                     \
  X(AL_NPU_PRODUCT, 61, "the delegate was compiled for another NPU")                          \
  X(AL_NPU_MACS, 62, "the delegate was compiled for another number of MACs")                  \
  X(AL_NPU_RESET, 63, "the NPU does not come out of reset")                                   \
  X(AL_NPU_BUS, 64, "NPU bus error")                                                          \
  X(AL_NPU_PARSE, 65, "the NPU refuses a command")                                            \
  X(AL_NPU_ECC, 66, "NPU ECC error")                                                          \
  X(AL_NPU_BRANCH, 67, "NPU branch error")                                                    \
  X(AL_NPU_TIMEOUT, 68, "the NPU does not finish")                                            \
  X(AL_NPU_STOPPED, 69, "the NPU stopped before the end of its commands")                     \
  X(AL_NPU_MODEL, 70, "the NPU model on the host reports an error")                           \
  X(AL_HOST_GONE, 71, "the host does not answer")                                             \
  X(AL_NPU_WEIGHTS, 72, "the NPU cannot decode the weights")                                  \
  X(AL_NPU_SILENT, 73, "the NPU stopped without an interrupt")                                \
  X(AL_NPU_ACCESS, 74, "the NPU does not take the access level")

typedef enum al_status {
#define X(name, number, text) name = number,
  AL_STATUSES(X)
#undef X
} al_status;

/* What went wrong, and where. Unknown fields are -1, 0 or NULL. */
typedef struct al_error {
  al_status status;
  int32_t instruction;  /* number in the method, -1 outside of execution */
  int32_t argument;     /* argument of the operator, or number of the input or output */
  const char *name;     /* operator, method, delegate, block or table; not owned, not always terminated: see name_size */
  uint32_t name_size;
  uint32_t overload_size;
  const char *overload; /* of a missing kernel: its name is name "." overload */
  uint32_t needed;      /* bytes or count; for a corrupt file the byte offset of the table `name` */
  uint32_t available;
} al_error;

const char *al_status_text(al_status status);
/* Writes a sentence without newline, always terminated; the number of characters it has (snprintf's rule). */
size_t al_error_text(const al_error *error, char *text, size_t size);

/* torch's numbers */
typedef enum al_dtype {
  AL_U8 = 0, AL_I8 = 1, AL_I16 = 2, AL_I32 = 3, AL_I64 = 4, AL_F16 = 5, AL_F32 = 6, AL_F64 = 7,
  AL_C64 = 9 /* complex64, can only be moved */, AL_BOOL = 11, AL_BF16 = 15
} al_dtype;

/* Sizes are logical (NCHW); dim_order is how the dimensions lie in memory, outermost first, without gaps. */
typedef struct al_tensor {
  void *data;                /* NULL until it has memory */
  int32_t *sizes;            /* read-only unless dynamic */
  const int32_t *bounds;     /* largest sizes; the same array as sizes for static tensors */
  const uint8_t *dim_order;
  uint32_t capacity;         /* bytes that data may hold */
  uint8_t dtype;             /* al_dtype */
  uint8_t rank;
  bool dynamic;
  bool constant : 1;         /* data is in the file, or an input that the caller lends: not to be written */
  bool view : 1;             /* data is another tensor's, until the next execution */
  bool lent : 1;             /* data is the caller's: al_bind, al_set_input */
} al_tensor;

/* KernelTypes of the schema */
typedef enum al_type {
  AL_NULL = 1, AL_INT = 2, AL_BOOLEAN = 3, AL_DOUBLE = 4, AL_TENSOR = 5, AL_STRING = 6, AL_INT_LIST = 7,
  AL_DOUBLE_LIST = 8, AL_BOOL_LIST = 9, AL_TENSOR_LIST = 10, AL_OPTIONAL_TENSOR_LIST = 11
} al_type;

typedef struct al_value {
  union {
    int64_t i;
    double d;
    bool b;
    al_tensor *t;
    /* In the file, unaligned: bytes, doubles, int64 (of an int list) or int32 (of a tensor list) value indices. */
    struct { const void *items; uint32_t count; } list;
  };
  uint8_t type; /* al_type */
} al_value;

typedef struct al_call al_call; /* one call of a kernel: kernel.h */
typedef struct al_method al_method;

typedef struct al_kernel {
  const char *name; /* "aten::add.out" */
  al_status (*run)(al_call *call);
} al_kernel;

typedef struct al_block {
  void *data;
  uint32_t size; /* bytes */
} al_block;

/* Runs delegates of one id. `state` is the backend's own (for the NPU: its driver). */
typedef struct al_backend {
  const char *id; /* "EthosUBackend" */
  void *state;
  /* Checks a delegate's data and says how much scratch memory a call needs. */
  al_status (*check)(void *state, const void *data, uint32_t size, uint32_t *scratch);
  /* Runs it: arguments are the inputs, then the outputs. */
  al_status (*run)(void *state, const void *data, uint32_t size, al_call *call);
} al_backend;

/* Called before and after each instruction; for profiling. */
typedef struct al_observer {
  void (*event)(void *state, bool begins, uint32_t instruction, const char *name, uint32_t name_size);
  void *state;
} al_observer;

typedef struct al_config {
  const al_kernel *kernels;
  uint32_t kernel_count;
  const al_backend *backends;
  uint32_t backend_count;
  al_observer observer; /* event may be NULL */
} al_config;

/* Memory of one method. Data of each block is AL_ALIGNMENT aligned. */
typedef struct al_memory {
  al_block values;                 /* value table and tensor headers */
  al_block arenas[AL_MAX_ARENAS];  /* planned memory, [0] is memory id 1 */
  al_block scratch;                /* of delegates, used during a call only; may be shared between methods */
  al_block fast_scratch;           /* dedicated SRAM of the NPU; empty if the memory mode has none */
} al_memory;

typedef struct al_needs {
  uint32_t values;
  uint32_t arenas[AL_MAX_ARENAS];
  uint32_t scratch;
  uint32_t input_count;
  uint32_t output_count;
} al_needs;

/* A checked file. */
typedef struct al_program {
  const uint8_t *data;
  uint32_t size;          /* bytes of data */
  uint32_t flatbuffer;    /* bytes of the flatbuffer at the beginning of data */
  uint32_t root;          /* offset of the Program table */
  uint32_t segments;      /* offset of the first segment */
} al_program;

al_status al_program_load(al_program *program, const void *data, size_t size, al_error *error);
uint32_t al_program_methods(const al_program *program);
/* Name of a method; not terminated, `size` is its length. NULL if there is no such number. */
const char *al_program_method_name(const al_program *program, uint32_t number, uint32_t *size);

/* `method` NULL is the first one. Backends are asked for the scratch memory of their delegates. */
al_status al_method_needs(const al_program *program, const char *method, const al_config *config, al_needs *needs,
                          al_error *error);
/* Builds the method in `memory->values` and resolves its kernels and backends. */
al_status al_method_init(al_method **result, const al_program *program, const char *method, const al_memory *memory,
                         const al_config *config, al_error *error);

/* NULL if there is no such number. An input that was not planned has no data until al_set_input or al_bind. */
const al_value *al_input(const al_method *method, uint32_t number);
const al_value *al_output(const al_method *method, uint32_t number);
/* Copies `data` (dimensions as in the tensor's dim_order) after checking type and sizes; resizes dynamic inputs. An
 * input that is not planned is not copied: `data` must stay as it is until the execution has ended. Numbers (AL_I64,
 * AL_F64, AL_BOOL, rank 0), strings (AL_U8, rank 1) and None (`data` NULL) must equal what the file has. */
al_status al_set_input(al_method *method, uint32_t number, al_dtype dtype, uint32_t rank, const int32_t *sizes,
                       const void *data, size_t bytes, al_error *error);
/* Gives an input or output that is not planned the caller's memory, enough for its largest sizes. */
al_status al_bind(al_method *method, bool output, uint32_t number, void *data, size_t bytes, al_error *error);
al_status al_execute(al_method *method, al_error *error);

uint32_t al_dtype_size(al_dtype dtype); /* bytes, 0 for unknown ones */
uint32_t al_numel(const al_tensor *tensor);
uint32_t al_nbytes(const al_tensor *tensor);

#endif
