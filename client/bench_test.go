package client_test

import (
	"testing"

	"larder/internal/session/sessiontest"
	"larder/internal/shm"
	larderv1 "larder/proto/larder/v1"
)

// BenchmarkHandOver is what a batch costs beside its preparation: BATCH out, Next, RELEASE back, over the real socket.
// The engine of the test writes a few bytes a batch; the bytes of real batches never pass here.
func BenchmarkHandOver(b *testing.B) {
	d := start(b, map[string]sessiontest.Job{"a": {Batches: 1 << 30, Rows: 1, Side: 1}})
	s := d.attach("a", 0)
	if err := s.StartEpoch(b.Context(), 0); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		batch, err := s.Next(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		batch.Release()
	}
}

// BenchmarkCall is one round trip of the control plane.
func BenchmarkCall(b *testing.B) {
	c := start(b, nil).dial()
	req, res := &larderv1.GetStatsRequest{Job: "a"}, new(larderv1.GetStatsResponse)
	for b.Loop() {
		if err := c.Call(b.Context(), "GetStats", req, res); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate is the making of a ring of four batches of 256x3x224x224 bytes, every page present.
func BenchmarkCreate(b *testing.B) {
	const size = 4 * 256 * 3 * 224 * 224
	b.SetBytes(size)
	for b.Loop() {
		s, err := shm.Create("bench", size)
		if err != nil {
			b.Fatal(err)
		}
		s.Release()
	}
}
