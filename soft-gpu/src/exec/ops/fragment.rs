//! How a warp holds a matrix: which element is in which register of which lane.
//!
//! `mma` and `ldmatrix` prescribe it (PTX ISA, "Matrix fragments for mma"). With `g = lane / 4`,
//! `t = lane % 4` and `e` elements to a register, all shapes follow one rule: A is made of blocks
//! of 8 rows and `4e` columns, B of `4e` rows and 8 columns; lane `(g, t)` holds the `e` elements
//! of A's row `g` (B's column `g`) from `t·e` on, one register a block. A's registers run over two
//! blocks of rows first, then along k. Accumulators hold two neighbours `2t, 2t+1` of row `g`, then
//! those of row `g + 8`.
//!
//! `wmma` leaves it open. Here its fragments are those of the `mma` tiles (16×8, or 8×8 where there
//! are 8 rows) that it is made of, one after the other, as on hardware. Where PTX gives a fragment
//! more registers than it has elements (8 for `f16` A and B), the others repeat the first.

/// What a matrix is to `D = A·B + C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    /// m rows of k.
    A,
    /// k rows of n.
    B,
    /// m rows of n; also D.
    C,
}

/// The type of an element. The discriminants travel in immediates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Elem {
    F16,
    BF16,
    TF32,
    F64,
    S8,
    U8,
    S4,
    U4,
    B1,
    F32,
    S32,
    E4M3,
    E5M2,
}

const ELEMS: [(&str, Elem); 13] = [
    ("f16", Elem::F16),
    ("bf16", Elem::BF16),
    ("tf32", Elem::TF32),
    ("f64", Elem::F64),
    ("s8", Elem::S8),
    ("u8", Elem::U8),
    ("s4", Elem::S4),
    ("u4", Elem::U4),
    ("b1", Elem::B1),
    ("f32", Elem::F32),
    ("s32", Elem::S32),
    ("e4m3", Elem::E4M3),
    ("e5m2", Elem::E5M2),
];

impl Elem {
    /// The type of a PTX name, without its dot.
    pub(crate) fn named(name: &str) -> Option<Elem> {
        ELEMS.iter().find(|(n, _)| *n == name).map(|(_, e)| *e)
    }

    #[inline(always)]
    fn at(code: u32) -> Elem {
        ELEMS[(code & 15).min(12) as usize].1
    }

    /// Bits of one element in memory.
    #[inline(always)]
    pub(crate) fn bits(self) -> u32 {
        match self {
            Elem::F64 => 64,
            Elem::TF32 | Elem::F32 | Elem::S32 => 32,
            Elem::F16 | Elem::BF16 => 16,
            Elem::S8 | Elem::U8 | Elem::E4M3 | Elem::E5M2 => 8,
            Elem::S4 | Elem::U4 => 4,
            Elem::B1 => 1,
        }
    }

    /// Elements of one register (of 32 bits, or of 64 for doubles).
    #[inline(always)]
    pub(crate) fn packed(self) -> u32 {
        (32 / self.bits()).max(1)
    }

    /// Held in 64-bit registers.
    pub(crate) fn wide(self) -> bool {
        self == Elem::F64
    }
}

/// `x / y` of a power of two, as all sizes are that are served: divisions would take as long as the
/// elements.
#[inline(always)]
fn over(x: u32, y: u32) -> u32 {
    x >> y.trailing_zeros()
}

/// The sizes of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Rows of A and C: 8, 16 or 32.
    pub(crate) m: u32,
    /// Columns of B and C: 8, 16 or 32.
    pub(crate) n: u32,
    /// Columns of A and rows of B: a multiple of 4, at most 256.
    pub(crate) k: u32,
}

impl Shape {
    /// From `m16n8k16`.
    pub(crate) fn named(name: &str) -> Option<Shape> {
        let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        let shape = Shape {
            m: m.parse().ok()?,
            n: n.parse().ok()?,
            k: k.parse().ok()?,
        };
        let side = |s| matches!(s, 8 | 16 | 32);
        (side(shape.m)
            && side(shape.n)
            && shape.k.is_multiple_of(4)
            && (4..=256).contains(&shape.k))
        .then_some(shape)
    }

    /// In 16 bits.
    #[inline(always)]
    pub(crate) fn code(self) -> u32 {
        self.m >> 3 | (self.n >> 3) << 4 | (self.k >> 2) << 8
    }

    /// From [`Self::code`].
    #[inline(always)]
    pub(crate) fn at(code: u32) -> Shape {
        Shape {
            m: (code & 15) << 3,
            n: (code >> 4 & 15) << 3,
            k: (code >> 8 & 0x7f) << 2,
        }
    }

    /// Tiles above each other.
    #[inline(always)]
    pub(crate) fn high(self) -> u32 {
        self.m.div_ceil(16)
    }

    /// Tiles beside each other.
    #[inline(always)]
    pub(crate) fn across(self) -> u32 {
        self.n >> 3
    }

    /// Registers that hold a matrix, without repetitions.
    #[inline(always)]
    pub(crate) fn registers(self, role: Role, packed: u32) -> u32 {
        match role {
            Role::A => over((self.m >> 3) * self.k, 4 * packed),
            Role::B => over(self.across() * self.k, 4 * packed),
            Role::C => over(self.m * self.n, 32 * packed),
        }
    }

    /// Row and column of element `j` of register `r` in a lane.
    #[inline(always)]
    pub(crate) fn place(self, role: Role, packed: u32, r: u32, j: u32, lane: u32) -> (u32, u32) {
        let (g, t) = (lane >> 2, lane & 3);
        let along = |block: u32| block * 4 * packed + t * packed + j;
        let tall = u32::from(self.m > 8);
        match role {
            Role::A => {
                let tile = over(self.registers(role, packed), self.high());
                let (tile, q) = (over(r, tile), r & (tile - 1));
                let row = tile * 16 + g + 8 * (q & tall);
                (row, along(q >> tall))
            }
            Role::B => {
                let tile = over(self.registers(role, packed), self.across());
                (along(r & (tile - 1)), over(r, tile) * 8 + g)
            }
            Role::C => {
                let i = r * packed + j;
                let (tile, q) = (i >> (1 + tall), i & ((2 << tall) - 1));
                let row = over(tile, self.across()) * 16 + g + 8 * (q >> 1);
                (row, (tile & (self.across() - 1)) * 8 + t * 2 + (q & 1))
            }
        }
    }
}

/// A matrix in memory and in registers, as it travels in an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// The product it belongs to.
    pub(crate) shape: Shape,
    /// Its elements.
    pub(crate) elem: Elem,
    /// Its part.
    pub(crate) role: Role,
    /// Columns are contiguous in memory.
    pub(crate) by_column: bool,
    /// State space of its address (a constant of [`super::memory::space`]).
    pub(crate) space: u8,
}

impl Matrix {
    /// In one word.
    pub(crate) fn code(self) -> u32 {
        self.shape.code()
            | (self.elem as u32) << 16
            | (self.role as u32) << 20
            | u32::from(self.by_column) << 22
            | u32::from(self.space) << 24
    }

    /// From [`Self::code`].
    #[inline(always)]
    pub(crate) fn at(code: u32) -> Matrix {
        Matrix {
            shape: Shape::at(code),
            elem: Elem::at(code >> 16),
            role: match code >> 20 & 3 {
                0 => Role::A,
                1 => Role::B,
                _ => Role::C,
            },
            by_column: code >> 22 & 1 != 0,
            space: (code >> 24) as u8,
        }
    }

    /// Rows and columns.
    pub(crate) fn size(self) -> (u32, u32) {
        let Shape { m, n, k } = self.shape;
        match self.role {
            Role::A => (m, k),
            Role::B => (k, n),
            Role::C => (m, n),
        }
    }
}

/// A product, as it travels in an immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Product {
    /// Its sizes.
    pub(crate) shape: Shape,
    /// Elements of A, B, C and D.
    pub(crate) elems: [Elem; 4],
    /// `.satfinite`.
    pub(crate) clamp: bool,
    /// `.and.popc`, not `.xor.popc`.
    pub(crate) and: bool,
    /// `m8n8k4` of halves: A and B are held by columns.
    pub(crate) by_column: [bool; 2],
    /// Rounding mode of doubles, as in [`crate::exec::round::Mode::of`].
    pub(crate) mode: u64,
    /// D's registers are none of A's and B's, and of C's at most those of the same pair.
    pub(crate) in_place: bool,
}

impl Product {
    /// In an immediate.
    pub(crate) fn code(self) -> u64 {
        let [a, b, c, d] = self.elems.map(|e| e as u64);
        let [p, q] = self.by_column.map(u64::from);
        u64::from(self.shape.code())
            | a << 16
            | b << 20
            | c << 24
            | d << 28
            | u64::from(self.clamp) << 32
            | u64::from(self.and) << 33
            | p << 34
            | q << 35
            | (self.mode & 3) << 36
            | u64::from(self.in_place) << 38
    }

    /// From [`Self::code`].
    #[inline(always)]
    pub(crate) fn at(code: u64) -> Product {
        let flag = |k: u32| code >> k & 1 != 0;
        Product {
            shape: Shape::at(code as u32),
            elems: [16, 20, 24, 28].map(|k| Elem::at((code >> k) as u32)),
            clamp: flag(32),
            and: flag(33),
            by_column: [flag(34), flag(35)],
            mode: code >> 36 & 3,
            in_place: flag(38),
        }
    }

    /// Registers of D, A, B and C, the order in which an instruction lists them.
    #[inline(always)]
    pub(crate) fn counts(self) -> [usize; 4] {
        let [a, b, c, d] = self.elems;
        [(Role::C, d), (Role::A, a), (Role::B, b), (Role::C, c)]
            .map(|(role, e)| self.shape.registers(role, e.packed()) as usize)
    }
}
