package record

import (
	"encoding/binary"
	"math"
	"testing"
)

// TestNumbers: every dtype gives the number that was stored, and its text.
func TestNumbers(t *testing.T) {
	le := binary.LittleEndian
	for _, x := range []struct {
		d    DType
		raw  []byte
		want float64
		text string
	}{
		{Bool, []byte{1}, 1, "true"}, {Uint8, []byte{200}, 200, "200"}, {Int8, []byte{200}, -56, "-56"},
		{Uint16, le.AppendUint16(nil, 65535), 65535, "65535"}, {Int16, le.AppendUint16(nil, 65535), -1, "-1"},
		{Uint32, le.AppendUint32(nil, 1<<32-1), 1<<32 - 1, "4294967295"},
		{Int32, le.AppendUint32(nil, 1<<31), -1 << 31, "-2147483648"},
		{Uint64, le.AppendUint64(nil, math.MaxUint64), math.MaxUint64, "18446744073709551615"},
		{Int64, le.AppendUint64(nil, 1<<53+1), 1 << 53, "9007199254740993"},
		{Float16, le.AppendUint16(nil, 0x3c00), 1, "1"}, {Float16, le.AppendUint16(nil, 0xc580), -5.5, "-5.5"},
		{Float16, le.AppendUint16(nil, 1), math.Ldexp(1, -24), "5.96046e-08"},
		{Float16, le.AppendUint16(nil, 0x7bff), 65504, "65504"},
		{Float16, le.AppendUint16(nil, 0xfc00), math.Inf(-1), "-Inf"},
		{BFloat16, le.AppendUint16(nil, 0x3fc0), 1.5, "1.5"},
		{Float32, le.AppendUint32(nil, math.Float32bits(0.1)), float64(float32(0.1)), "0.1"},
		{Float64, le.AppendUint64(nil, math.Float64bits(math.Pi)), math.Pi, "3.14159"},
	} {
		v := Value{Kind: Scalar, DType: x.d, Data: x.raw}
		if v.Len() != 1 || v.Number(0) != x.want || v.NumberText(0) != x.text {
			t.Errorf("%s: %v and %q, want %v and %q", x.d, v.Number(0), v.NumberText(0), x.want, x.text)
		}
	}
	if v := (Value{DType: Float16, Data: []byte{1, 0x7c}}); !math.IsNaN(v.Number(0)) {
		t.Errorf("a NaN is %v", v.Number(0))
	}
}

func TestRange(t *testing.T) {
	var raw []byte
	for _, f := range []float64{3, math.NaN(), -1, 4} {
		raw = binary.LittleEndian.AppendUint64(raw, math.Float64bits(f))
	}
	v := Value{Kind: Array, DType: Float64, Data: raw}
	r := v.Range()
	if r != (Range{Min: -1, Max: 4, Sum: 6, Numbers: 3, NaN: 1}) || r.Mean() != 2 {
		t.Errorf("%+v", r)
	}
	var all Range
	all.Join(Range{NaN: 2})
	all.Join(r)
	all.Join(Range{Min: 9, Max: 9, Sum: 9, Numbers: 1})
	if all != (Range{Min: -1, Max: 9, Sum: 15, Numbers: 4, NaN: 3}) {
		t.Errorf("%+v", all)
	}
}
