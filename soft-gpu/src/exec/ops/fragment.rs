//! Matrix fragments: which element of a matrix is in which register of which lane.
//!
//! The PTX manual defines the fragments of `mma` and `ldmatrix` ("Matrix fragments for mma"). With
//! `g = lane / 4`, `t = lane % 4` and `e` elements per register, all shapes follow one rule. A
//! consists of blocks of 8 rows and `4e` columns, B of blocks of `4e` rows and 8 columns. Lane `(g,
//! t)` holds, for each block, one register with the `e` elements from position `t·e` on of A's row
//! `g` (or B's column `g`). A's registers first go over two blocks of rows, then along k.
//! Accumulators hold the two elements `2t, 2t+1` of row `g`, then those of row `g + 8`.
//!
//! The manual does not define the fragments of `wmma`. Here, as on hardware, they consist of the
//! fragments of the `mma` tiles (16×8, or 8×8 if the matrix has 8 rows) that make up the matrix,
//! one after another. If PTX gives a fragment more registers than needed (8 for `f16` A and B), the
//! other registers repeat the first ones.

/// The part of a matrix in `D = A·B + C`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    /// m rows of k elements.
    A,
    /// k rows of n elements.
    B,
    /// m rows of n elements. D has this role, too.
    C,
}

/// The type of an element. Immediates of instructions hold the discriminants.
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
    /// The type with this PTX name, given without the dot.
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

    /// Elements per register. A register has 32 bits, or 64 bits for doubles.
    #[inline(always)]
    pub(crate) fn packed(self) -> u32 {
        (32 / self.bits()).max(1)
    }

    /// Whether the registers have 64 bits.
    pub(crate) fn wide(self) -> bool {
        self == Elem::F64
    }
}

/// `x / y` for a power of two `y`, as all served sizes are. A division instruction would take as
/// long as moving the elements.
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
    /// Parses sizes such as `m16n8k16`.
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

    /// Encodes the sizes in 16 bits.
    #[inline(always)]
    pub(crate) fn code(self) -> u32 {
        self.m >> 3 | (self.n >> 3) << 4 | (self.k >> 2) << 8
    }

    /// Decodes the result of [`Self::code`].
    #[inline(always)]
    pub(crate) fn at(code: u32) -> Shape {
        Shape {
            m: (code & 15) << 3,
            n: (code >> 4 & 15) << 3,
            k: (code >> 8 & 0x7f) << 2,
        }
    }

    /// Number of tiles that a column of tiles has.
    #[inline(always)]
    pub(crate) fn high(self) -> u32 {
        self.m.div_ceil(16)
    }

    /// Number of tiles that a row of tiles has.
    #[inline(always)]
    pub(crate) fn across(self) -> u32 {
        self.n >> 3
    }

    /// Number of registers that hold a matrix, without repetitions.
    #[inline(always)]
    pub(crate) fn registers(self, role: Role, packed: u32) -> u32 {
        match role {
            Role::A => over((self.m >> 3) * self.k, 4 * packed),
            Role::B => over(self.across() * self.k, 4 * packed),
            Role::C => over(self.m * self.n, 32 * packed),
        }
    }

    /// Row and column of element `j` of register `r` in lane `lane`.
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

/// The description of a matrix in memory and in registers, which an instruction holds as one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Sizes of the product to which the matrix belongs.
    pub(crate) shape: Shape,
    /// Type of the elements.
    pub(crate) elem: Elem,
    /// Part of the matrix in the product.
    pub(crate) role: Role,
    /// Whether the elements of a column are contiguous in memory.
    pub(crate) by_column: bool,
    /// State space of the matrix (a constant of [`super::element::space`]).
    pub(crate) space: u8,
}

impl Matrix {
    /// Encodes the description in one word.
    pub(crate) fn code(self) -> u32 {
        self.shape.code()
            | (self.elem as u32) << 16
            | (self.role as u32) << 20
            | u32::from(self.by_column) << 22
            | u32::from(self.space) << 24
    }

    /// Decodes the result of [`Self::code`].
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

    /// Number of rows and columns.
    pub(crate) fn size(self) -> (u32, u32) {
        let Shape { m, n, k } = self.shape;
        match self.role {
            Role::A => (m, k),
            Role::B => (k, n),
            Role::C => (m, n),
        }
    }
}

/// The description of a product, which an instruction holds as its immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Product {
    /// Sizes.
    pub(crate) shape: Shape,
    /// Types of the elements of A, B, C and D.
    pub(crate) elems: [Elem; 4],
    /// `.satfinite`.
    pub(crate) clamp: bool,
    /// `.and.popc` instead of `.xor.popc`.
    pub(crate) and: bool,
    /// Whether the layouts of A and B are by columns. Used by `m8n8k4` of halves only.
    pub(crate) by_column: [bool; 2],
    /// Rounding mode of doubles, as in [`crate::exec::round::Mode::of`].
    pub(crate) mode: u64,
    /// Whether D may be written while C is read: no register of D is a register of A or B, and each
    /// is at most a register of the same pair of C.
    pub(crate) in_place: bool,
}

impl Product {
    /// Encodes the description as an immediate.
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

    /// Decodes the result of [`Self::code`].
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

    /// Number of registers of D, A, B and C. Instructions list the registers in this order.
    #[inline(always)]
    pub(crate) fn counts(self) -> [usize; 4] {
        let [a, b, c, d] = self.elems;
        [(Role::C, d), (Role::A, a), (Role::B, b), (Role::C, c)]
            .map(|(role, e)| self.shape.registers(role, e.packed()) as usize)
    }
}
