package client_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"larder/internal/errs"
	"larder/internal/session/wire"
	larderv1 "larder/proto/larder/v1"
)

func recordInfo() *larderv1.AttachResponse {
	info := goodInfo()
	info.Fields = []*larderv1.Field{
		{Name: "image", Dtype: "float32", Kind: "array", Shape: []uint32{2}, SampleBytes: 8},
		{Name: "boxes", Dtype: "int16", Kind: "array", Ragged: true, Dims: 2, Offset: 64},
		{Name: "text", Dtype: "uint8", Kind: "text", Ragged: true, Dims: 1, Offset: 128},
		{Name: "index", Dtype: "int64", Offset: 192, SampleBytes: 8},
	}
	return info
}

// putRecords writes two rows as docs/protocol.md says.
func putRecords(p []byte) {
	le := binary.LittleEndian
	entries := func(at int, values ...uint64) {
		for i, v := range values {
			le.PutUint64(p[at+8*i:], v)
		}
	}
	copy(p, "denserow0denserow1"[:8])
	copy(p[8:], "denserow")
	entries(64, 256, 12, 3, 2, 320, 0, 0, 2)
	entries(128, 320, 2, 2, 384, 5, 5)
	entries(192, 7, 9)
	copy(p[256:], "boxesofrow_0")
	copy(p[320:], "hi")
	copy(p[384:], "there")
}

// TestRecords: rows of records are read from dense fields and from entries; an image field of records is no image.
func TestRecords(t *testing.T) {
	b := &broken{info: recordInfo()}
	b.then = func(c *net.UnixConn) {
		putRecords(b.ring.Bytes())
		_, _ = c.Write(wire.AppendFrame(nil, wire.Batch, 0, wire.BatchFrame{Rows: 2}.Append(nil)))
	}
	c, s := b.attach(t)
	defer c.Close()
	if err := s.StartEpoch(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	batch, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		row  int
		data string
		dims []int64
	}{
		{"image", 0, "denserow", []int64{2}}, {"image", 1, "denserow", []int64{2}},
		{"boxes", 0, "boxesofrow_0", []int64{3, 2}}, {"boxes", 1, "", []int64{0, 2}},
		{"text", 0, "hi", []int64{2}}, {"text", 1, "there", []int64{5}}, {"index", 0, "", nil}, {"text", 2, "", nil},
	} {
		if data, dims := batch.Value(x.name, x.row); !bytes.Equal(data, []byte(x.data)) || !slices.Equal(dims, x.dims) {
			t.Errorf("row %d of %s: %q %v", x.row, x.name, data, dims)
		}
	}
	if pix, _, _, _ := batch.Image(0); pix != nil || !slices.Equal(batch.Index(), []int64{7, 9}) {
		t.Errorf("image %v, index %v", pix, batch.Index())
	}
	batch.Release()
	if data, dims := batch.Value("text", 0); data != nil || dims != nil {
		t.Error("a released batch is read")
	}
}

// TestBrokenRecords: entries that lie about places and sizes end the stream.
func TestBrokenRecords(t *testing.T) {
	le := binary.LittleEndian
	for name, spoil := range map[string]func(p []byte){
		"offset":     func(p []byte) { le.PutUint64(p[64:], 4090) },
		"far offset": func(p []byte) { le.PutUint64(p[64:], 1<<64-64) },
		"bytes":      func(p []byte) { le.PutUint64(p[72:], 10) },
		"dims":       func(p []byte) { le.PutUint64(p[80:], 4) },
		"overflow":   func(p []byte) { le.PutUint64(p[80:], 1<<62); le.PutUint64(p[88:], 1<<62) },
		"text":       func(p []byte) { le.PutUint64(p[136:], 4096); le.PutUint64(p[144:], 4096) },
	} {
		t.Run(name, func(t *testing.T) {
			b := &broken{info: recordInfo()}
			b.then = func(c *net.UnixConn) {
				putRecords(b.ring.Bytes())
				spoil(b.ring.Bytes())
				_, _ = c.Write(wire.AppendFrame(nil, wire.Batch, 0, wire.BatchFrame{Rows: 2}.Append(nil)))
			}
			c, s := b.attach(t)
			defer c.Close()
			if err := s.StartEpoch(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Next(t.Context()); !errs.Is(err, errs.Protocol) {
				t.Errorf("%v", err)
			}
		})
	}
	b := &broken{info: recordInfo()}
	b.info.Fields[1].Dims = 9
	b.listen(t, t.TempDir())
	c := b.dial(t)
	defer c.Close()
	if _, err := c.Attach(t.Context(), &larderv1.AttachRequest{Job: "a"}); !errs.Is(err, errs.Protocol) {
		t.Errorf("nine dimensions: %v", err)
	}
}
