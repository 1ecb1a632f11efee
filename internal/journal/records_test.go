package journal

import (
	"fmt"
	"hash/crc64"
	"testing"

	"larder/internal/ident"
)

// The bytes of each kind were recorded when records had one type for all kinds: what is on disk stays readable, and is
// written as it was.
func TestRecordedBytes(t *testing.T) {
	ids := ids(3, 1, 70_000)
	for _, c := range []struct {
		rec  Record
		want string
	}{
		{Registered{Job: 7, Document: `{"name":"d"}`}, "01020700000000007b226e616d65223a2264227d"},
		{Attached{Job: 7, Rank: 1, Incarnation: 3, Client: "pid 5"}, "02020701030000007069642035"},
		{EpochStarted{Job: 7, Epoch: 4, Instance: 9, Remainder: true}, "030207000004090072657374"},
		{EpochStarted{Job: 7, Epoch: 4, Instance: 9}, "0302070000040900"}, // so it was before picks were counted
		{EpochStarted{Job: 7, Epoch: 4, Instance: 9, Counted: true}, "0302070000040900636f756e746564"},
		{Assigned{Job: 7, Rank: 1, Incarnation: 3, Epoch: 4, Step: 2, Samples: ids}, "04020701030402031103000200c04504"},
		{GivenEarlier{Job: 7, Epoch: 4, Chunk: 5, Samples: ids}, "040207ffffffff0f000405031103000200c04504"},
		{Returned{Job: 7, Rank: 1, Incarnation: 3, Epoch: 4, Step: 2}, "0602070103040200"},
		{Returned{Job: 7, Rank: 1, Incarnation: 3, Epoch: 4, Step: 2, Samples: ids}, "06020701030402031103000200c04504"},
		{Quarantined{Job: 7, Samples: ids[:1], Reason: "not an image"}, "070207000000000102036e6f7420616e20696d616765"},
		{Quarantined{Job: 7, Samples: ids[:1], Reason: "damaged", Corrupt: true}, "0702070000000101020364616d61676564"},
		{EpochEnded{Job: 7, Epoch: 4, Account: "complete"}, "0802070000040000636f6d706c657465"},
		{Ended{Job: 7, Reason: "its client left"}, "090207000000000069747320636c69656e74206c656674"},
		{Indexed{Document: `{"name":"d"}`}, "0a020000000000007b226e616d65223a2264227d"},
		{SubsetChanged{Job: 7, Epoch: 5, Mark: 2, Document: `{"expr":"id < 3"}`},
			"0b020700000502007b2265787072223a226964203c2033227d"},
		{Paused{Job: 7}, "0c02070000000000"},
		{Unpaused{Job: 7}, "0d02070000000000"},
		{Dealt{Job: 7, Epoch: 4, Step: 6, Samples: ids, GivenUp: 12}, "0e020700000406031103000200c045043132"},
		{Dealt{Job: 7, Epoch: 4, Step: 6}, "0e0207000004060030"},
	} {
		e := entry{row: c.rec.row(), Term: 2}
		if got := fmt.Sprintf("%x", appendBody(nil, &e)); got != c.want {
			t.Errorf("%+v is written as %s, and was as %s", c.rec, got, c.want)
		}
	}
}

// So were a snapshot and a file of orders.
func TestRecordedFiles(t *testing.T) {
	s, story := newState(), newStory(5)
	for i := range 400 {
		r := story.record()
		s.apply(&entry{row: r, n: len(r.Objects), packed: pack(nil, r.Objects), Seq: uint64(i + 1), Term: uint64(1 + i/100)})
	}
	sum := func(b []byte) uint64 { return crc64.Checksum(b, crc64.MakeTable(crc64.ECMA)) }
	b := encodeSnapshot(header{kind: snapshotFile, id: 5, first: 400, term: 3}, s)
	if len(b) != 5770 || sum(b) != 0x7869fe72676fe352 {
		t.Errorf("a snapshot has %d bytes that sum to %x", len(b), sum(b))
	}
	b = encodeOrders(header{kind: ordersFile, id: 5, first: 1, term: 3}, s.closed)
	if len(b) != 12642 || sum(b) != 0x11a99edb32566a82 {
		t.Errorf("a file of orders has %d bytes that sum to %x", len(b), sum(b))
	}
}

// What a State hands out is what was appended.
func TestRowsAndBack(t *testing.T) {
	for _, r := range []EpochStarted{{Job: 1, Epoch: 2, Instance: 3}, {Job: 1, Remainder: true},
		{Job: 1, Counted: true}} {
		if got := r.row().epochStarted(); got != r {
			t.Errorf("%+v became %+v", r, got)
		}
	}
	q := Quarantined{Job: 1, Samples: []ident.ObjectID{4}, Reason: "it is damaged", Corrupt: true}
	if got := q.row().quarantined(); got.Samples[0] != 4 || got.Reason != q.Reason || !got.Corrupt {
		t.Errorf("%+v became %+v", q, got)
	}
	c := SubsetChanged{Job: 1, Epoch: 2, Mark: 3, Document: "{}"}
	if got := c.row().subsetChanged(); got != c {
		t.Errorf("%+v became %+v", c, got)
	}
}
