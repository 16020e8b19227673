//! Machine code (cubins) as modules whose kernels do nothing, for `SOFT_GPU_SASS=skip`. The ELF
//! file gives the names, parameters and attributes of the kernels, and the variables with their
//! initial contents.
//!
//! The layout is that of NVIDIA's assembler. Each function K has a section `.text.K`. Attributes of
//! K are in `.nv.info.K`, and, by the number of K's symbol, in `.nv.info`. Variables lie in
//! `.nv.global`, `.nv.global.init` and `.nv.constant3`.

use std::collections::{BTreeMap, HashMap};

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
    let cubin = Cubin::parse(image)?;
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
    by_name: HashMap<&'a [u8], usize>,
    symbols: SymbolTable<'a, Elf>,
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
        let mut by_name = HashMap::new();
        for (index, section) in sections.enumerate() {
            let name = sections.section_name(ENDIAN, section).map_err(damaged)?;
            by_name.insert(name, index.0);
        }
        Ok(Cubin {
            image,
            architecture,
            sections,
            by_name,
            symbols,
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

    fn kernels(&self, constant: u64) -> Result<Vec<KernelInfo>, Refusal> {
        // Attributes by symbol: registers and frame sizes.
        let mut by_symbol: HashMap<(u8, u32), u32> = HashMap::new();
        for (attribute, value) in self.attributes(".nv.info")? {
            if let (Some(symbol), Some(number)) = (word(value, 0), word(value, 1)) {
                by_symbol.insert((attribute, symbol), number);
            }
        }
        let mut kernels = Vec::new();
        for (index, symbol) in self.symbols.enumerate() {
            if symbol.st_type() != STT_FUNC || symbol.st_other().0 & ENTRY == 0 {
                continue;
            }
            let name = self.name(symbol)?;
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
    fn variables(&self) -> Result<Vec<(GlobalVar, Vec<u8>)>, Refusal> {
        let mut found = Vec::new();
        // Variables do not overlap, so all initial contents together are at most as long as the
        // file.
        let mut left = self.image.len();
        for (index, symbol) in self.symbols.enumerate() {
            if symbol.st_type() != STT_OBJECT {
                continue;
            }
            let section = self.symbols.symbol_section(ENDIAN, symbol, index);
            let Some(section) = section.map_err(damaged)? else {
                continue;
            };
            let header = self.sections.section(section).map_err(damaged)?;
            let place = self
                .sections
                .section_name(ENDIAN, header)
                .map_err(damaged)?;
            let constant = place == b".nv.constant3";
            if !constant && place != b".nv.global" && place != b".nv.global.init" {
                continue;
            }
            let (at, size) = (symbol.st_value(ENDIAN), symbol.st_size(ENDIAN));
            let data = header.data(ENDIAN, self.image).map_err(damaged)?;
            let end = at.saturating_add(size).min(data.len() as u64);
            let first = data.get(at as usize..end as usize).unwrap_or_default();
            let rest = left.checked_sub(first.len());
            left = rest.ok_or_else(|| damaged("its variables overlap"))?;
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

    fn name(&self, symbol: &object::elf::Sym64<LittleEndian>) -> Result<String, Refusal> {
        let name = self.symbols.symbol_name(ENDIAN, symbol).map_err(damaged)?;
        Ok(String::from_utf8_lossy(name).into_owned())
    }
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
