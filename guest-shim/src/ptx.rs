//! Finds the PTX texts of an image that a driver would compile for a device.

use std::borrow::Cow;

use vgpu_cudart::fatbin::{self, Entry, MACHINE_CODE, PTX, runs};
use vgpu_cudart::image::FATBIN;

/// Largest PTX text of a fatbin that is read, in bytes.
const MOST: usize = 64 << 20;

/// The texts of an image, one of which a device of compute capability `cc` runs: the image itself
/// if it is PTX, or all PTX of a fatbin without machine code for the device. Empty if the device
/// may run machine code, or if the image is damaged.
pub(crate) fn texts(image: &[u8], cc: (u32, u32)) -> Vec<Cow<'_, str>> {
    let magic = image.first_chunk().map(|four| u32::from_le_bytes(*four));
    let texts = match magic {
        Some(FATBIN) => of_fatbin(image, cc),
        // Machine code contains NUL bytes, text does not.
        _ if image.iter().take(16).any(|byte| *byte == 0) => None,
        _ => text(Cow::Borrowed(image.strip_suffix(&[0]).unwrap_or(image))).map(|text| vec![text]),
    };
    texts.unwrap_or_default()
}

/// All PTX texts that run on the device, because it is not known which text the driver chooses.
fn of_fatbin(image: &[u8], cc: (u32, u32)) -> Option<Vec<Cow<'_, str>>> {
    let all = fatbin::entries(image)?;
    // Other kinds of entries might contain code for the device.
    let compiled = |e: &Entry<'_>| match e.kind {
        PTX => true,
        MACHINE_CODE => e.sm / 10 != cc.0 || e.sm % 10 > cc.1,
        _ => false,
    };
    if !all.iter().all(compiled) {
        return None;
    }
    let ptx = all
        .iter()
        .filter(|e| e.kind == PTX && runs(e.sm, e.flags, cc));
    ptx.map(|e| text(e.text(MOST)?)).collect()
}

fn text(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    let text = match bytes {
        Cow::Borrowed(bytes) => Cow::Borrowed(std::str::from_utf8(bytes).ok()?),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8(bytes).ok()?),
    };
    (!text.contains('\0')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_cudart::fatbin::pack;

    const TEXT: &[u8] = b".version 7.0\n.target sm_70\n";

    fn entry(kind: u16, sm: u32, bytes: &[u8]) -> Vec<u8> {
        fatbin::entry(kind, sm, 0, bytes, 0)
    }

    #[test]
    fn ptx_is_its_own_text_and_machine_code_has_none() {
        let bare = [TEXT, b"\0"].concat();
        assert_eq!(texts(&bare, (8, 0)).concat().as_bytes(), TEXT);
        assert!(texts(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", (8, 0)).is_empty());
        assert!(texts(b".version 7.0 and \0 more", (8, 0)).is_empty());
    }

    #[test]
    fn of_a_fatbin_the_device_s_machine_code_runs_or_ptx_that_is_not_newer() {
        let ptx = |sm, text: &[u8]| entry(PTX, sm, text);
        let of = |entries: &[Vec<u8>], cc| texts(&pack(entries), cc).concat();
        let machine = entry(MACHINE_CODE, 80, b"\x7fELF");
        let some = [ptx(70, b"70 \0\0"), ptx(80, b"80 "), ptx(90, b"90 ")];
        assert_eq!(of(&some, (8, 6)), "70 80 ", "either may be compiled");
        assert_eq!(of(&some, (6, 0)), "");
        let both = [machine.clone(), ptx(70, b"70 ")];
        assert_eq!(of(&both, (8, 0)), "", "the machine code runs");
        assert_eq!(of(&both, (8, 6)), "", "also on a newer one");
        assert_eq!(of(&both, (9, 0)), "70 ", "of another major number");
        assert_eq!(of(&both, (7, 5)), "70 ", "of an older one");
        assert_eq!(of(&[entry(8, 52, b"?"), ptx(70, b"70 ")], (9, 0)), "");
        assert_eq!(of(&[ptx(70, b"70 "), ptx(80, b"\xff")], (9, 0)), "");
    }

    #[test]
    fn a_damaged_fatbin_has_no_text() {
        let whole = pack(&[entry(PTX, 70, TEXT)]);
        assert_eq!(texts(&whole, (8, 0)).concat().as_bytes(), TEXT);
        for len in 17..whole.len() {
            assert!(texts(&whole[..len], (8, 0)).is_empty(), "{len}");
        }
    }
}
