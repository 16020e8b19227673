//! Machine code (cubins) as modules whose kernels do nothing, for `SOFT_GPU_SASS=skip`. The ELF
//! file gives the names, parameters and attributes of the kernels, and the variables with their
//! initial contents.
//!
//! The layout is that of NVIDIA's assembler. Each function K has a section `.text.K`. Attributes of
//! K are in `.nv.info.K`, and, by the number of K's symbol, in `.nv.info`. Variables lie in
//! `.nv.global`, `.nv.global.init` and `.nv.constant3`.

use std::collections::{BTreeMap, HashMap, HashSet};

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_SYMTAB, STT_FUNC, STT_OBJECT};
use object::read::elf::{FileHeader as _, SectionHeader as _, SectionTable, Sym as _, SymbolTable};
use vgpu_cuda_abi::CuResult;

use super::attributes::REGISTERS;
use super::image::Refusal;
use super::program::Program;
use crate::exec::contract::{GlobalVar, KernelInfo};

/// Flags in a symbol's `st_other`: a managed variable, a kernel.
const MANAGED: u8 = 0x04;
const ENTRY: u8 = 0x10;

/// Numbers of the attributes in `.nv.info`.
mod attribute {
    pub(super) const MAX_THREADS: u8 = 0x05;
    pub(super) const REQUIRED_THREADS: u8 = 0x10;
    pub(super) const FRAME_SIZE: u8 = 0x11;
    pub(super) const PARAMETER: u8 = 0x17;
    pub(super) const PARAMETER_BYTES: u8 = 0x19;
    pub(super) const REGISTERS: u8 = 0x2f;
    pub(super) const LARGE_PARAMETER: u8 = 0x45;
}

/// The form of an attribute whose value follows the head, with a length. In all other forms, the
/// head holds the value in two bytes.
const SIZED: u8 = 4;
/// Most bytes of parameters of a kernel, on any device.
const MOST_PARAMETERS: usize = 1 << 15;

type Elf = FileHeader64<LittleEndian>;
const ENDIAN: LittleEndian = LittleEndian;

fn damaged(why: impl std::fmt::Display) -> Refusal {
    (
        CuResult::INVALID_IMAGE,
        format!("the machine code cannot be read: {why}"),
    )
}

/// The compute capability of a cubin, as major * 10 + minor.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE: not a 64-bit ELF file.
pub fn architecture(image: &[u8]) -> Result<u32, Refusal> {
    let header = Elf::parse(image).map_err(damaged)?;
    let flags = header.e_flags(ENDIAN).0;
    // The position of the number in the flags depends on the ABI version of the file.
    let shift = if header.e_ident().abi_version >= 8 {
        8
    } else {
        0
    };
    Ok(flags >> shift & 0xff)
}

/// The program of a cubin. The kernels of the program do nothing.
///
/// # Errors
/// CUDA_ERROR_INVALID_IMAGE for a damaged file.
pub fn program(image: &[u8]) -> Result<Program, Refusal> {
    let mut cubin = Cubin::parse(image)?;
    let globals = cubin.variables()?;
    let constant = globals.iter().filter(|(v, _)| v.constant);
    let constant = constant.fold(0, |n: u64, (v, _)| n.saturating_add(v.size));
    let kernels = cubin.kernels(constant)?;
    Ok(Program::hollow(kernels, globals))
}

struct Cubin<'a> {
    image: &'a [u8],
    architecture: u32,
    sections: SectionTable<'a, Elf>,
    /// Names of the sections, by number.
    names: Vec<&'a [u8]>,
    by_name: HashMap<&'a [u8], usize>,
    symbols: SymbolTable<'a, Elf>,
    /// Bytes that names of symbols and initial contents of variables may still have. These parts
    /// of a file do not overlap, so all of them together are at most as long as the file.
    left: usize,
}

/// An attribute and its value.
type Attribute<'a> = (u8, &'a [u8]);

impl<'a> Cubin<'a> {
    fn parse(image: &'a [u8]) -> Result<Cubin<'a>, Refusal> {
        let architecture = architecture(image)?;
        let header = Elf::parse(image).map_err(damaged)?;
        let sections = header.sections(ENDIAN, image).map_err(damaged)?;
        let symbols = sections
            .symbols(ENDIAN, image, SHT_SYMTAB)
            .map_err(damaged)?;
        let (mut names, mut by_name) = (Vec::new(), HashMap::new());
        // A name may be the end of another name: `.text.K` of `.rela.text.K`.
        let mut left = image.len().saturating_mul(2);
        for (index, section) in sections.iter().enumerate() {
            let name = sections.section_name(ENDIAN, section).map_err(damaged)?;
            left = left.checked_sub(name.len()).ok_or_else(overlapping)?;
            names.push(name);
            by_name.insert(name, index);
        }
        Ok(Cubin {
            image,
            architecture,
            sections,
            names,
            by_name,
            symbols,
            left: image.len(),
        })
    }

    /// The section of this name. A section of zeros (SHT_NOBITS) may be larger than the file.
    fn section(&self, name: &str) -> Option<&'a object::elf::SectionHeader64<LittleEndian>> {
        let index = *self.by_name.get(name.as_bytes())?;
        self.sections.section(object::SectionIndex(index)).ok()
    }

    fn attributes(&self, name: &str) -> Result<Vec<Attribute<'a>>, Refusal> {
        let Some(section) = self.section(name) else {
            return Ok(Vec::new());
        };
        let mut rest = section.data(ENDIAN, self.image).map_err(damaged)?;
        let mut all = Vec::new();
        while let Some((&[form, attribute, low, high], after)) = rest.split_first_chunk() {
            let size = match form {
                SIZED => usize::from(u16::from_le_bytes([low, high])),
                _ => 0,
            };
            let cut = after.split_at_checked(size);
            let (value, next) = cut.ok_or_else(|| damaged(format_args!("{name} is cut off")))?;
            let value = if form == SIZED { value } else { &rest[2..4] };
            all.push((attribute, value));
            rest = next;
        }
        Ok(all)
    }

    fn kernels(&mut self, constant: u64) -> Result<Vec<KernelInfo>, Refusal> {
        // Attributes by symbol: registers and frame sizes.
        let mut by_symbol: HashMap<(u8, u32), u32> = HashMap::new();
        for (attribute, value) in self.attributes(".nv.info")? {
            if let (Some(symbol), Some(number)) = (word(value, 0), word(value, 1)) {
                by_symbol.insert((attribute, symbol), number);
            }
        }
        let (mut kernels, mut seen) = (Vec::new(), HashSet::new());
        for index in 1..self.symbols.len() {
            let index = object::SymbolIndex(index);
            let symbol = self.symbols.symbol(index).map_err(damaged)?;
            if symbol.st_type() != STT_FUNC || symbol.st_other().0 & ENTRY == 0 {
                continue;
            }
            let name = self.name(symbol)?;
            if !seen.insert(name.clone()) {
                return Err(damaged("two kernels have one name"));
            }
            let of = |attribute| by_symbol.get(&(attribute, index.0 as u32)).copied();
            let registers = of(attribute::REGISTERS).unwrap_or(0).clamp(1, 255);
            let frame = of(attribute::FRAME_SIZE).unwrap_or(0);
            let shared = self.section(&format!(".nv.shared.{name}"));
            let shared = shared.map_or(0, |s| s.sh_size(ENDIAN));
            let mut kernel = KernelInfo {
                params: Vec::new(),
                param_bytes: 0,
                shared_bytes: shared.min(u32::MAX.into()) as usize,
                local_bytes: frame as usize,
                const_bytes: constant.min(i32::MAX as u64) as usize,
                registers,
                max_threads: most_threads(registers),
                required_block: None,
                virtual_arch: self.architecture,
                name,
            };
            self.describe(&mut kernel)?;
            kernels.push(kernel);
        }
        Ok(kernels)
    }

    /// Reads the attributes of the kernel's own section into `kernel`.
    fn describe(&self, kernel: &mut KernelInfo) -> Result<(), Refusal> {
        let mut parameters = BTreeMap::new();
        for (attribute, value) in self.attributes(&format!(".nv.info.{}", kernel.name))? {
            match attribute {
                attribute::PARAMETER | attribute::LARGE_PARAMETER => {
                    let words = (word(value, 1), word(value, 2));
                    let (Some(place), Some(size)) = words else {
                        continue;
                    };
                    let (ordinal, offset) = (place & 0xffff, place >> 16);
                    let size = match attribute {
                        attribute::PARAMETER => size >> 18,
                        _ => size,
                    };
                    parameters.insert(ordinal, (offset as usize, size as usize));
                }
                attribute::PARAMETER_BYTES => {
                    let bytes = value.first_chunk().map_or(0, |b| u16::from_le_bytes(*b));
                    kernel.param_bytes = bytes.into();
                }
                attribute::MAX_THREADS | attribute::REQUIRED_THREADS => {
                    let Some(block) = block(value) else { continue };
                    let threads = block.iter().fold(1u32, |n, d| n.saturating_mul(*d));
                    kernel.max_threads = threads.clamp(1, 1024);
                    if attribute == attribute::REQUIRED_THREADS {
                        kernel.required_block = Some(block);
                    }
                }
                _ => {}
            }
        }
        kernel.params = parameters.into_values().collect();
        let end = kernel
            .params
            .iter()
            .map(|(at, size)| at.saturating_add(*size));
        kernel.param_bytes = kernel.param_bytes.max(end.max().unwrap_or(0));
        if kernel.param_bytes > MOST_PARAMETERS {
            return Err(damaged(format_args!(
                "kernel {} has {} bytes of parameters",
                kernel.name, kernel.param_bytes
            )));
        }
        Ok(())
    }

    /// The variables with their initial bytes. If there are fewer bytes than the variable has, the
    /// rest is zero.
    fn variables(&mut self) -> Result<Vec<(GlobalVar, Vec<u8>)>, Refusal> {
        let mut found = Vec::new();
        for index in 1..self.symbols.len() {
            let index = object::SymbolIndex(index);
            let symbol = self.symbols.symbol(index).map_err(damaged)?;
            if symbol.st_type() != STT_OBJECT {
                continue;
            }
            let section = self.symbols.symbol_section(ENDIAN, symbol, index);
            let Some(section) = section.map_err(damaged)? else {
                continue;
            };
            let header = self.sections.section(section).map_err(damaged)?;
            let place = self.names[section.0];
            let constant = place == b".nv.constant3";
            if !constant && place != b".nv.global" && place != b".nv.global.init" {
                continue;
            }
            let (at, size) = (symbol.st_value(ENDIAN), symbol.st_size(ENDIAN));
            let data = header.data(ENDIAN, self.image).map_err(damaged)?;
            let end = at.saturating_add(size).min(data.len() as u64);
            let first = data.get(at as usize..end as usize).unwrap_or_default();
            self.takes(first.len())?;
            let variable = GlobalVar {
                name: self.name(symbol)?,
                size,
                align: 256,
                constant,
                visible: true,
                managed: symbol.st_other().0 & MANAGED != 0,
            };
            found.push((variable, first.to_vec()));
        }
        Ok(found)
    }

    /// Counts bytes of a name or of initial contents.
    fn takes(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.left = self.left.checked_sub(bytes).ok_or_else(overlapping)?;
        Ok(())
    }

    fn name(&mut self, symbol: &object::elf::Sym64<LittleEndian>) -> Result<String, Refusal> {
        let name = self.symbols.symbol_name(ENDIAN, symbol).map_err(damaged)?;
        self.takes(name.len())?;
        Ok(String::from_utf8_lossy(name).into_owned())
    }
}

fn overlapping() -> Refusal {
    damaged("its names and variables overlap")
}

/// Most threads of a block that the register file allows, in whole warps.
fn most_threads(registers: u32) -> u32 {
    let warp = registers.next_multiple_of(8) * 32;
    (REGISTERS / warp * 32).min(1024)
}

fn word(value: &[u8], index: usize) -> Option<u32> {
    let bytes = value.get(index * 4..index * 4 + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn block(value: &[u8]) -> Option<[u32; 3]> {
    Some([word(value, 0)?, word(value, 1)?, word(value, 2)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUBINS: [&[u8]; 2] = [
        include_bytes!("../../fixtures/machine/kinds.12.cubin"),
        include_bytes!("../../fixtures/machine/kinds.13.cubin"),
    ];

    #[test]
    fn both_forms_of_the_file_are_read() {
        for image in CUBINS {
            assert_eq!(architecture(image), Ok(80));
            let program = program(image).expect("a cubin");
            let names: Vec<&str> = program.kernels().map(|(name, _)| name).collect();
            assert_eq!(names, ["nothing", "scale"]);
            let scale = program.kernel("scale").map(|k| program.kernel_info(k));
            let scale = scale.expect("a kernel");
            assert_eq!(scale.params, [(0, 8), (8, 4), (16, 24), (40, 1)]);
            assert_eq!(
                (scale.param_bytes, scale.max_threads, scale.shared_bytes),
                (41, 256, 512)
            );
            let nothing = program.kernel("nothing").map(|k| program.kernel_info(k));
            assert_eq!(nothing.and_then(|k| k.required_block), Some([32, 1, 1]));
            let managed: Vec<_> = program.globals().iter().filter(|g| g.managed).collect();
            assert_eq!((managed.len(), &managed[0].name[..]), (1, "together"));
        }
    }

    /// A cubin with the given symbols, of kernels or variables, and their names.
    fn with_symbols(symbols: &[u8], names: &[u8], attributes: &[u8]) -> Vec<u8> {
        const SYMTAB: u32 = 2;
        const STRTAB: u32 = 3;
        const INFO: u32 = 0x7000_0000;
        let shstrtab = b"\0.symtab\0.strtab\0.shstrtab\0.nv.info.k\0.nv.global\0";
        let parts: [(u32, u32, &[u8]); 5] = [
            (1, SYMTAB, symbols),
            (9, STRTAB, names),
            (17, STRTAB, shstrtab),
            (27, INFO, attributes),
            (38, 1, b""),
        ];
        let (mut file, mut table) = (vec![0; 64], vec![0; 64]);
        for (name, kind, bytes) in parts {
            let (offset, size) = (file.len() as u64, bytes.len() as u64);
            file.extend(bytes);
            let numbers = [
                u64::from(name) | u64::from(kind) << 32,
                0,
                0,
                offset,
                size,
                2 | 1 << 32,
            ];
            table.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
            table.extend([8_u64, 24].iter().flat_map(|n| n.to_le_bytes()));
        }
        let at = file.len() as u64;
        file.extend(table);
        file[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x33\x08");
        file[16..20].copy_from_slice(&[2, 0, 190, 0]);
        file[20] = 1;
        file[40..48].copy_from_slice(&at.to_le_bytes());
        file[49] = 80;
        for (at, value) in [(52, 64), (54, 56), (58, 64), (60, 6), (62, 3)] {
            file[at] = value;
        }
        file
    }

    /// A symbol whose name is at offset 1.
    fn symbol(kind: u8, section: u8) -> [u8; 24] {
        let mut symbol = [0; 24];
        (symbol[0], symbol[4], symbol[5], symbol[6]) = (1, kind, ENTRY, section);
        symbol
    }

    #[test]
    fn names_that_many_symbols_share_are_refused() {
        const FUNC: u8 = 2;
        const OBJECT: u8 = 1;
        let none = [0; 24];
        let one = [none, symbol(FUNC, 4)].concat();
        assert_eq!(
            program(&with_symbols(&one, b"\0k\0", b"")).map(|p| p.kernels().count()),
            Ok(1)
        );
        let why = |image: &[u8]| program(image).map(drop).expect_err("it is damaged").1;
        // Each kernel of this name would read all attributes again.
        let many = [&none[..], &symbol(FUNC, 4).repeat(20_000)].concat();
        let twice = why(&with_symbols(
            &many,
            b"\0k\0",
            &[1, 0, 0, 0].repeat(100_000),
        ));
        assert!(twice.contains("two kernels have one name"), "{twice}");
        // Copies of this name would take 5 GB.
        let long = [&b"\0"[..], &vec![b'v'; 500_000], b"\0"].concat();
        let many = [&none[..], &symbol(OBJECT, 5).repeat(10_000)].concat();
        let large = why(&with_symbols(&many, &long, b""));
        assert!(large.contains("overlap"), "{large}");
    }

    #[test]
    fn registers_bound_the_largest_block() {
        assert_eq!(
            [1, 32, 64, 65, 128, 255].map(most_threads),
            [1024, 1024, 1024, 896, 512, 256]
        );
    }

    #[test]
    fn damaged_files_are_refused_or_read_without_a_panic() {
        for image in CUBINS {
            for cut in 0..image.len() {
                let _ = program(&image[..cut]);
            }
            assert!(program(&image[..64]).is_err());
            assert!(program(&image[..image.len() / 2]).is_err());
            for at in 0..image.len() {
                for value in [
                    0x00,
                    0x7f,
                    0xff,
                    image[at] ^ 0x80,
                    image[at].wrapping_add(1),
                ] {
                    let mut damaged = image.to_vec();
                    damaged[at] = value;
                    let _ = program(&damaged);
                }
            }
        }
    }
}
