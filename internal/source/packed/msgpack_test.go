package packed

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"
)

// binOf is bin 32 of the specification, strOf str 32.
func binOf(b string) string {
	return "\xc6" + string(binary.BigEndian.AppendUint32(nil, uint32(len(b)))) + b
}
func strOf(b string) string {
	return "\xdb" + string(binary.BigEndian.AppendUint32(nil, uint32(len(b)))) + b
}

func TestMsgpackPairs(t *testing.T) {
	const jpeg = "\xff\xd8\xff\xe0 and the rest"
	long := jpeg + strings.Repeat("x", 70_000)
	for name, c := range map[string]struct {
		message, image string
		label          int64
	}{
		"lists in a list, as Joader writes":  {"\x92\x91" + binOf("DATA") + "\x07", "DATA", 7},
		"the number first":                   {"\x92\x07\xc4\x04DATA", "DATA", 7},
		"bin 16":                             {"\x92\xc5\x00\x04DATA\x00", "DATA", 0},
		"bin 32 beyond 16 bits":              {"\x92" + binOf(long) + "\x01", long, 1},
		"a map":                              {"\x82\xa5image\xc4\x04DATA\xa5label\x7f", "DATA", 127},
		"map 16":                             {"\xde\x00\x02\xa1i\xc4\x04DATA\xa1l\x01", "DATA", 1},
		"map 32":                             {"\xdf\x00\x00\x00\x02\xa1i\xc4\x04DATA\xa1l\x01", "DATA", 1},
		"array 16":                           {"\xdc\x00\x02\xc4\x04DATA\x02", "DATA", 2},
		"array 32":                           {"\xdd\x00\x00\x00\x02\xc4\x04DATA\x02", "DATA", 2},
		"a string that is an image, old":     {"\x92" + strOf(jpeg) + "\x03", jpeg, 3},
		"a short string that is an image":    {"\x92\xb1" + jpeg + "\x03", jpeg, 3},
		"str 8 and str 16 beside it":         {"\x94\xd9\x01a\xda\x00\x01b\xc4\x01D\x03", "D", 3},
		"the least small number":             {"\x92\xc4\x01D\xe0", "D", -32},
		"-1":                                 {"\x92\xc4\x01D\xff", "D", -1},
		"uint 8":                             {"\x92\xc4\x01D\xcc\xff", "D", 255},
		"uint 16":                            {"\x92\xc4\x01D\xcd\x03\xe7", "D", 999},
		"uint 32":                            {"\x92\xc4\x01D\xce\xff\xff\xff\xff", "D", math.MaxUint32},
		"uint 64, the largest that is taken": {"\x92\xc4\x01D\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", "D", math.MaxInt64},
		"int 8":                              {"\x92\xc4\x01D\xd0\x80", "D", -128},
		"int 16":                             {"\x92\xc4\x01D\xd1\xff\x00", "D", -256},
		"int 32":                             {"\x92\xc4\x01D\xd2\x80\x00\x00\x00", "D", math.MinInt32},
		"int 64":                             {"\x92\xc4\x01D\xd3\x80\x00\x00\x00\x00\x00\x00\x00", "D", math.MinInt64},
		"no bytes":                           {"\x92\xc4\x00\x05", "", 5},
	} {
		got, err := parsePair([]byte(c.message))
		if err != nil || string(got.image) != c.image || got.label != c.label {
			t.Errorf("%s: %d bytes, label %d, %v; want %d bytes, label %d", name, len(got.image), got.label, err,
				len(c.image), c.label)
		}
		for cut := range min(len(c.message), 40) {
			if _, err := parsePair([]byte(c.message[:cut])); err == nil {
				t.Errorf("%s: cut at byte %d of %d, and read", name, cut, len(c.message))
			}
		}
	}
}

func TestMsgpackThatIsNoPair(t *testing.T) {
	many := "\xdd\xff\xff\xff\xff" + strings.Repeat("\x01", 1000)
	for name, c := range map[string][2]string{
		"nothing":             {"", "it is cut"},
		"no number":           {"\x91\xc4\x01D", "1 byte strings and 0 whole numbers"},
		"no image":            {"\x92\x01\x02", "0 byte strings and 2 whole numbers"},
		"two images":          {"\x93\xc4\x01D\xc4\x01E\x01", "2 byte strings and 1 whole numbers"},
		"text for an image":   {"\x92\xa4DATA\x01", "0 byte strings and 1 whole numbers"},
		"bytes behind":        {"\x92\xc4\x01D\x01\x02", "1 bytes behind the msgpack"},
		"a length that lies":  {"\x92\xc6\xff\xff\xff\xffD\x01", "it is cut"},
		"null":                {"\x92\xc4\x01D\xc0", "a value of type 0xc0"},
		"true":                {"\x92\xc4\x01D\xc3", "a value of type 0xc3"},
		"a float":             {"\x92\xc4\x01D\xca\x00\x00\x00\x00", "a value of type 0xca"},
		"an extension":        {"\x92\xc4\x01D\xd4\x01\x01", "a value of type 0xd4"},
		"too deep":            {strings.Repeat("\x91", 6) + "\x01", "more than an image and a label"},
		"too many values":     {many, "more than an image and a label"},
		"a map of 2^32 pairs": {"\xdf\xff\xff\xff\xff\x01", "it is cut"},
		"a label that is 2^63": {"\x92\xc4\x01D\xcf\x80\x00\x00\x00\x00\x00\x00\x00",
			"9223372036854775808 is larger than a label can be"},
	} {
		if got, err := parsePair([]byte(c[0])); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: %+v, %v; want %q", name, got, err, c[1])
		}
	}
}

// FuzzMsgpack reads anything as an image and a label: an error, or bytes of the message, in memory of its size.
func FuzzMsgpack(f *testing.F) {
	for _, s := range []string{"\x92\x91\xc4\x04DATA\x07", "\x82\xa5image\xc5\x00\x04DATA\xa5label\xcd\x03\xe7",
		"\xdc\x00\x02\xc6\x00\x00\x00\x01D\xd3\x00\x00\x00\x00\x00\x00\x00\x02", "\x92\xa4\xff\xd8\xff\xe0\xff",
		"\xdf\x00\x00\x00\x02\xd9\x01i\xc4\x01D\xda\x00\x01l\xe0"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		got, err := parsePair(b)
		if !bytes.Equal(b, before) {
			t.Fatal("the message changed")
		}
		if err != nil {
			return
		}
		if !bytes.Contains(b, got.image) {
			t.Fatalf("%q does not hold the image %q", b, got.image)
		}
		if _, err := parsePair(append(before, 0)); err == nil {
			t.Fatal("a byte behind the message was accepted")
		}
	})
}
