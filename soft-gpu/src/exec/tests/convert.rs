//! Conversions from and to half precision.

use super::eval::eval;

/// The value of a half, by the definition of the format.
fn half_value(h: u64) -> f64 {
    let (e, m) = (h >> 10 & 31, (h & 0x3ff) as f64);
    let v = match e {
        0 => m / 1024.0 * 2f64.powi(-14),
        31 => return if m == 0.0 { f64::INFINITY } else { f64::NAN },
        _ => (1.0 + m / 1024.0) * 2f64.powi(e as i32 - 15),
    };
    if h & 0x8000 != 0 { -v } else { v }
}

#[test]
fn halves() {
    let rows: Vec<Vec<u64>> = (0..0x7c00u64)
        .step_by(7)
        .chain([0x7c00, 0x7bff, 0x8001])
        .map(|h| vec![h])
        .collect();
    let wide = eval("cvt.f32.f16 %d, %a;", "f32", &["b16"], &rows);
    for (row, got) in rows.iter().zip(&wide) {
        assert_eq!(
            f64::from(f32::from_bits(*got as u32)).abs(),
            half_value(row[0]).abs(),
            "{:x}",
            row[0]
        );
    }
    // Conversion back gives the same half. A value between two halves is rounded to the nearer
    // half, ties to even.
    let back: Vec<Vec<u64>> = wide.iter().map(|w| vec![*w]).collect();
    let again = eval("cvt.rn.f16.f32 %d, %a;", "b16", &["f32"], &back);
    for (row, got) in rows.iter().zip(again) {
        assert_eq!(got, row[0]);
    }
    let mids: Vec<Vec<u64>> = (0..0x7bffu64)
        .step_by(11)
        .map(|h| {
            vec![u64::from(
                (((half_value(h) + half_value(h + 1)) / 2.0) as f32).to_bits(),
            )]
        })
        .collect();
    let near = eval("cvt.rn.f16.f32 %d, %a;", "b16", &["f32"], &mids);
    let down = eval("cvt.rz.f16.f32 %d, %a;", "b16", &["f32"], &mids);
    for (k, h) in (0..0x7bffu64).step_by(11).enumerate() {
        assert_eq!(near[k], h + (h & 1), "tie above {h:x}");
        assert_eq!(down[k], h, "toward zero {h:x}");
    }
    let one = |x: f32| vec![u64::from(x.to_bits())];
    let edge = eval(
        "cvt.rn.f16.f32 %d, %a;",
        "b16",
        &["f32"],
        &[one(65520.0), one(65519.0), one(f32::NAN), one(-1e-9)],
    );
    assert_eq!(edge, [0x7c00, 0x7bff, 0x7fff, 0x8000]);
    let pair = |a: f32, b: f32| vec![u64::from(a.to_bits()), u64::from(b.to_bits())];
    let packed = eval(
        "cvt.rn.f16x2.f32 %d, %a, %b;",
        "b32",
        &["f32", "f32"],
        &[pair(1.0, -2.0)],
    );
    assert_eq!(packed, [0x3c00_c000]);
    let packed = eval(
        "cvt.rn.bf16x2.f32 %d, %a, %b;",
        "b32",
        &["f32", "f32"],
        &[pair(1.0, 1.003_906_3)],
    );
    assert_eq!(packed, [0x3f80_3f80], "a tie to even");
}
