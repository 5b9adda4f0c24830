//! Instructions of eBPF, one function each, for programs that are written by hand: what the compiler
//! would make of them is not what is to be measured.
//!
//! The codes are those of `include/uapi/linux/bpf_common.h` and `bpf.h`. A jump's offset counts the
//! instructions that it skips.

/// The fields of an instruction, as `struct bpf_insn` names them.
struct Fields {
    op: u8,
    dst: u8,
    src: u8,
    off: i16,
    imm: i32,
}

impl Fields {
    /// The fields of an instruction without operands.
    const fn of(op: u8) -> Self {
        Self {
            op,
            dst: 0,
            src: 0,
            off: 0,
            imm: 0,
        }
    }

    /// The first half of a load of 64 bits, of a kind of value.
    const fn load(dst: u8, src: u8, imm: i32) -> Self {
        Self {
            dst,
            src,
            imm,
            ..Self::of(0x18)
        }
    }

    const fn encode(self) -> u64 {
        self.op as u64
            | (self.dst as u64) << 8
            | (self.src as u64) << 12
            | (self.off.cast_unsigned() as u64) << 16
            | (self.imm.cast_unsigned() as u64) << 32
    }
}

macro_rules! instructions {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) =
        $op:literal, $dst:expr, $src:expr, $off:expr, $imm:expr;)+) => {
        $($(#[$doc])*
        #[must_use]
        pub const fn $name($($argument: $type),*) -> u64 {
            let fields = Fields { op: $op, dst: $dst, src: $src, off: $off, imm: $imm };
            fields.encode()
        })+
    };
}

instructions! {
    /// `dst = src`.
    mov(dst: u8, src: u8) = 0xbf, dst, src, 0, 0;
    /// `dst = imm`.
    mov_imm(dst: u8, imm: i32) = 0xb7, dst, 0, 0, imm;
    /// `dst += src`.
    add(dst: u8, src: u8) = 0x0f, dst, src, 0, 0;
    /// `dst += imm`.
    add_imm(dst: u8, imm: i32) = 0x07, dst, 0, 0, imm;
    /// `dst -= src`.
    subtract(dst: u8, src: u8) = 0x1f, dst, src, 0, 0;
    /// `dst *= imm`, of 32 bits.
    multiply_half(dst: u8, imm: i32) = 0x24, dst, 0, 0, imm;
    /// `dst ^= src`.
    xor(dst: u8, src: u8) = 0xaf, dst, src, 0, 0;
    /// `dst &= imm`.
    and_imm(dst: u8, imm: i32) = 0x57, dst, 0, 0, imm;
    /// `dst <<= imm`.
    shift_left(dst: u8, imm: i32) = 0x67, dst, 0, 0, imm;
    /// `dst >>= imm`.
    shift_right(dst: u8, imm: i32) = 0x77, dst, 0, 0, imm;
    /// `dst = *(u8 *)(src + off)`.
    load_byte(dst: u8, src: u8, off: i16) = 0x71, dst, src, off, 0;
    /// `dst = *(u16 *)(src + off)`.
    load_half(dst: u8, src: u8, off: i16) = 0x69, dst, src, off, 0;
    /// `dst = *(u32 *)(src + off)`.
    load_word(dst: u8, src: u8, off: i16) = 0x61, dst, src, off, 0;
    /// `dst = *(u64 *)(src + off)`.
    load_double(dst: u8, src: u8, off: i16) = 0x79, dst, src, off, 0;
    /// `*(u8 *)(dst + off) = src`.
    store_byte(dst: u8, src: u8, off: i16) = 0x73, dst, src, off, 0;
    /// `*(u16 *)(dst + off) = src`.
    store_half(dst: u8, src: u8, off: i16) = 0x6b, dst, src, off, 0;
    /// `*(u32 *)(dst + off) = src`.
    store_word(dst: u8, src: u8, off: i16) = 0x63, dst, src, off, 0;
    /// `*(u64 *)(dst + off) = src`.
    store_double(dst: u8, src: u8, off: i16) = 0x7b, dst, src, off, 0;
    /// `*(u32 *)(dst + off) = imm`.
    store_word_imm(dst: u8, off: i16, imm: i32) = 0x62, dst, 0, off, imm;
    /// `*(u64 *)(dst + off) = imm`.
    store_double_imm(dst: u8, off: i16, imm: i32) = 0x7a, dst, 0, off, imm;
    /// `*(u64 *)(dst + off) += src`, atomically.
    atomic_add_double(dst: u8, src: u8, off: i16) = 0xdb, dst, src, off, 0;
    /// `goto off`.
    jump(off: i16) = 0x05, 0, 0, off, 0;
    /// `if dst > src goto off`.
    jump_if_above(dst: u8, src: u8, off: i16) = 0x2d, dst, src, off, 0;
    /// `if dst != src goto off`.
    jump_if_different(dst: u8, src: u8, off: i16) = 0x5d, dst, src, off, 0;
    /// `if dst == imm goto off`.
    jump_if_equal(dst: u8, imm: i32, off: i16) = 0x15, dst, 0, off, imm;
    /// `if dst != imm goto off`.
    jump_unless_equal(dst: u8, imm: i32, off: i16) = 0x55, dst, 0, off, imm;
    /// Calls a helper with R1 to R5; what it returns is in R0.
    call(helper: i32) = 0x85, 0, 0, 0, helper;
}

/// Ends the program; R0 is its return code.
pub const EXIT: u64 = Fields::of(0x95).encode();

/// The register of the stack's end; addresses below it are the program's.
pub const STACK: u8 = 10;

/// `dst` = a map (`BPF_PSEUDO_MAP_FD`).
#[must_use]
pub const fn map(dst: u8, fd: i32) -> [u64; 2] {
    [Fields::load(dst, 1, fd).encode(), 0]
}

/// `dst` = the value of an array with one entry (`BPF_PSEUDO_MAP_VALUE`).
#[must_use]
pub const fn map_value(dst: u8, fd: i32) -> [u64; 2] {
    [Fields::load(dst, 2, fd).encode(), 0]
}

/// Numbers of helpers: `enum bpf_func_id`.
pub mod helper {
    /// Looks a key up.
    pub const MAP_LOOKUP: i32 = 1;
    /// Writes an entry.
    pub const MAP_UPDATE: i32 = 2;
    /// Corrects the checksum of an IP header.
    pub const L3_CSUM_REPLACE: i32 = 10;
    /// Corrects the checksum of a transport header.
    pub const L4_CSUM_REPLACE: i32 = 11;
    /// Goes on with another program.
    pub const TAIL_CALL: i32 = 12;
    /// Finds a socket of UDP.
    pub const SK_LOOKUP_UDP: i32 = 85;
    /// Lets go of a socket.
    pub const SK_RELEASE: i32 = 86;
    /// Finds a socket of TCP, or what stands for one.
    pub const SKC_LOOKUP_TCP: i32 = 99;
    /// Jiffies since the system started.
    pub const JIFFIES64: i32 = 118;
    /// Redirects to a next hop.
    pub const REDIRECT_NEIGH: i32 = 152;
    /// Redirects into the namespace of a veth device's peer.
    pub const REDIRECT_PEER: i32 = 155;
}
