/* The driver payload that Vela writes: driver actions with one stream of register commands (see fvp/ethosu/decode.py).
 *
 * COP1: 'COP1', then actions. An action is a word [7:0] kind, [15:8] reserved or high bits, [31:16] parameter.
 * COP2: a header of fixed size, metadata padded to 16 bytes, the stream.
 */
#include "ethosu.h"

#define COP1 0x31504F43u
#define COP2 0x32504F43u
#define VEUM 0x4D554556u

enum { ACTION_CONFIG = 1, ACTION_STREAM, ACTION_READ_REGISTERS, ACTION_DUMP, ACTION_NOP };

/* A command is one word, or two with [15:14] = 1; [9:0] is the opcode. Opcodes below 0x100 are operations, the others
 * registers, which keep their values. */
enum { OP_STOP = 0, OP_CONV = 2, OP_RESIZE = 7, OP_DMA_START = 0x10 };
enum { IFM, OFM, IFM2, MAPS, WEIGHT = MAPS, SCALE, SOURCE, TARGET, INDEX, REGIONS };
static const uint16_t region_opcodes[REGIONS] = {0x10f, 0x11f, 0x18f, 0x128, 0x129, 0x130, 0x131, 0x134};
static const uint16_t precision_opcodes[MAPS] = {0x105, 0x114, 0x185};
/* Fields beside the region of a DMA; on U85, what [15:14] of a precision says above 1: in no memory. */
enum { INTERNAL = 1 << 8, INDEXED = 1 << 11, TILES = 1 };

typedef struct registers {
  uint16_t region[REGIONS], precision[MAPS];
} registers;

static void set(registers *r, uint32_t opcode, uint32_t value) {
  for (int i = 0; i < REGIONS; i++)
    if (opcode == region_opcodes[i]) r->region[i] = (uint16_t)value;
  for (int i = 0; i < MAPS; i++)
    if (opcode == precision_opcodes[i]) r->precision[i] = (uint16_t)value;
}

/* Regions that an operation may use, as bits. */
static uint32_t used(const registers *r, uint32_t opcode, bool u85) {
  uint32_t mask = 0;
  if (opcode == OP_DMA_START) {
    for (int i = SOURCE; i <= TARGET; i++) {
      if (!(r->region[i] & INTERNAL)) mask |= 1u << (r->region[i] & 7);
      if (u85 && r->region[i] & INDEXED) mask |= 1u << (r->region[INDEX] & 7);
    }
  } else if (opcode >= OP_CONV && opcode <= OP_RESIZE) {
    for (int i = 0; i < MAPS; i++)
      if (!u85 || r->precision[i] >> 14 <= TILES) mask |= 1u << (r->region[i] & 7);
    mask |= 1u << (r->region[WEIGHT] & 7) | 1u << (r->region[SCALE] & 7);
  }
  return mask;
}

static al_status scan(al_ethosu_payload *payload) {
  registers r = {0};
  bool u85 = payload->config >> 28 == 2;
  uint32_t count = payload->stream_bytes / 4, last = 1;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t word = payload->stream[i], control = word >> 14 & 3, opcode = word & 0x3ff;
    last = word & 0xffff;
    if (control > 1) return AL_DELEGATE_CORRUPT;
    if (control == 1) {
      if (++i == count) return AL_DELEGATE_CORRUPT;
    } else if (opcode >= 0x100) {
      set(&r, opcode, word >> 16);
    } else {
      payload->regions |= used(&r, opcode, u85);
    }
  }
  if (last != OP_STOP) return AL_DELEGATE_CORRUPT; /* the NPU would never finish */
  return payload->regions & ~7u ? AL_FILE_UNSUPPORTED : AL_OK; /* base pointers that only other drivers set */
}

static al_status parse1(const uint32_t *words, uint32_t count, al_ethosu_payload *payload) {
  bool configured = false;
  for (uint32_t i = 1; i < count;) {
    uint32_t word = words[i++], left = count - i, reserved = word >> 8 & 0xff, parameter = word >> 16;
    switch (word & 0xff) {
      case ACTION_CONFIG:
        if (reserved || left < 2) return AL_DELEGATE_CORRUPT;
        payload->config = words[i];
        payload->id = words[i + 1];
        configured = true;
        i += 2;
        break;
      case ACTION_STREAM: {
        uint32_t length = parameter | reserved << 16;
        if (!configured || payload->stream || length > left) return AL_DELEGATE_CORRUPT;
        payload->stream = words + i;
        payload->stream_bytes = 4 * length;
        i += length;
        break;
      }
      case ACTION_NOP:
        if (word != ACTION_NOP) return AL_DELEGATE_CORRUPT;
        break;
      case ACTION_READ_REGISTERS:
      case ACTION_DUMP:
        return AL_FILE_UNSUPPORTED;
      default:
        return AL_DELEGATE_CORRUPT;
    }
  }
  return payload->stream ? AL_OK : AL_DELEGATE_CORRUPT;
}

static al_status parse2(const uint32_t *words, uint32_t count, al_ethosu_payload *payload) {
  enum { VERSION = 1, TOTAL = 2, KIND = 4, LENGTH, METADATA, TAG, TAG_VERSION, TAG_BYTES, CONFIG, ID, HEADER = 15 };
  if (count < HEADER) return AL_DELEGATE_CORRUPT;
  uint32_t bytes = 4 * count - 16, metadata = words[METADATA];
  if (words[VERSION] != 1 || words[TOTAL] != bytes || words[TOTAL + 1] != 0 || words[KIND] != 1 ||
      words[LENGTH] != bytes - 8 || words[TAG] != VEUM || words[TAG_VERSION] != 1 || words[TAG_BYTES] != 20 ||
      metadata % 4 || metadata < 32 || metadata > words[LENGTH] - 4)
    return AL_DELEGATE_CORRUPT;
  uint32_t start = 6 + (4 + metadata) / 4;
  payload->config = words[CONFIG];
  payload->id = words[ID];
  payload->stream = words + start;
  payload->stream_bytes = 4 * (count - start);
  return AL_OK;
}

al_status al_ethosu_parse(const void *commands, uint32_t bytes, al_ethosu_payload *payload) {
  const uint32_t *words = commands;
  *payload = (al_ethosu_payload){0};
  if (bytes < 4 || bytes % 4 || (words[0] != COP1 && words[0] != COP2)) return AL_DELEGATE_CORRUPT;
  al_status status = (words[0] == COP1 ? parse1 : parse2)(words, bytes / 4, payload);
  if (status) return status;
  if ((uintptr_t)payload->stream % 16) return AL_DELEGATE_CORRUPT; /* the queue's base address */
  return scan(payload);
}
