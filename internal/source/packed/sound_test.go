package packed

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"larder/internal/record"
	"larder/internal/testenv/lane"
)

// waveOf writes a .wav of 16 bits at 16 kHz, one channel.
func waveOf(samples ...int16) []byte {
	le := binary.LittleEndian
	b := append([]byte("RIFF\x00\x00\x00\x00WAVEfmt "), 16, 0, 0, 0, wavePCM, 0, 1, 0)
	b = append(le.AppendUint32(b, 16000), 0, 0, 0, 0, 2, 0, 16, 0)
	b = le.AppendUint32(append(b, "data"...), uint32(2*len(samples)))
	for _, v := range samples {
		b = le.AppendUint16(b, uint16(v))
	}
	return b
}

// mdsTable writes a shard whose columns all vary.
func mdsTable(names, encodings []string, rows ...[][]byte) []byte {
	head, _ := json.Marshal(map[string]any{"column_names": names, "column_encodings": encodings,
		"column_sizes": make([]any, len(names))})
	le := binary.LittleEndian
	b := le.AppendUint32(nil, uint32(len(rows)))
	at := 4 + 4*(len(rows)+1) + len(head)
	var data []byte
	for _, row := range rows {
		b = le.AppendUint32(b, uint32(at+len(data)))
		for _, v := range row {
			data = le.AppendUint32(data, uint32(len(v)))
		}
		data = append(data, bytes.Join(row, nil)...)
	}
	b = le.AppendUint32(b, uint32(at+len(data)))
	return slices.Concat(b, head, data)
}

// bytesOfFeature is a feature of byte strings.
func bytesOfFeature(values ...[]byte) []byte {
	var list []byte
	for _, v := range values {
		list = protowire.AppendBytes(protowire.AppendTag(list, 1, protowire.BytesType), v)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), list)
}

// soundSets are files of sound in formats that have no packages of their own here.
func soundSets(t testing.TB) map[string]disk {
	t.Helper()
	one, two := waveOf(-32768, 16384, 0), flacOf(t, 16, [][]int32{slices.Repeat([]int32{1 << 14}, 20)})
	rows := [][][]byte{{one, []byte("first")}, {two, []byte("second")}}
	records := [][]byte{exampleOf("clip", bytesOfFeature(one)), exampleOf("clip", bytesOfFeature(two))}
	for i := range int16(12) { // files of at least 2 KiB
		values := make([]int16, 80)
		for k := range values {
			values[k] = int16(k*k)*7 - i
		}
		clip := waveOf(values...)
		rows = append(rows, [][]byte{clip, []byte(fmt.Sprint(i))})
		records = append(records, exampleOf("clip", bytesOfFeature(clip)))
	}
	return map[string]disk{
		"mds:?audio=clip": {"/d/a.mds": mdsTable([]string{"clip", "jpg"}, []string{"bytes", "jpeg"}, rows...)},
		"tfrecord:":       {"/d/a.tfrecord": tfRecordOf(records...)},
	}
}

func TestSoundInMDSAndTFRecord(t *testing.T) {
	half := strings.Repeat("0000003f", 20)
	for name, d := range soundSets(t) { // order-free: each by itself
		f, a := address(t, name)
		s, got, _, err := readAll(f, a, d, d.main())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, want := range []string{"clip=[1 3]float32000080bf0000003f00000000 clip_rate=[][16000]",
			"clip=[1 20]float32" + half + " clip_rate=[][16000]"} {
			if x := show(t, &s, got[i]); !strings.HasPrefix(x, want) {
				t.Errorf("%s: sample %d is %s, not %s", name, i, x, want)
			}
		}
	}
}

// TestSoundThatIsNone: what is named and is no sound, and what only begins as one, is said with what to do.
func TestSoundThatIsNone(t *testing.T) {
	odd := waveOf(1, 2)
	binary.LittleEndian.PutUint16(odd[20:], 17) // ADPCM
	shard := func(values ...string) disk {
		var rows [][][]byte
		for i, v := range values {
			rows = append(rows, [][]byte{[]byte(v), []byte(fmt.Sprint(i))})
		}
		return disk{"/d/a.mds": mdsTable([]string{"clip", "text"}, []string{"bytes", "str"}, rows...)}
	}
	records := func(values ...[]byte) disk {
		var all [][]byte
		for _, v := range values {
			all = append(all, exampleOf("clip", v))
		}
		return disk{"/d/a.tfrecord": tfRecordOf(all...)}
	}
	sound := bytesOfFeature(waveOf(1))
	for name, c := range map[string]struct {
		uri  string
		d    disk
		want string
	}{
		"no column":    {"mds:?audio=clp", shard("x"), `?audio= names "clp", and there are "clip", "text"`},
		"text":         {"mds:?audio=text", shard("x"), `?audio= names "text", which is str; sound lies in columns of bytes`},
		"no sound":     {"mds:?audio=clip", shard("no"), `column "clip" is no sound that is read (wav, flac): it is no RIFF`},
		"rate of none": {"mds:?fields=clip_rate", shard("x"), `it has no column "clip_rate", only clip, text`},
		"later": {"mds:?audio=clip", shard(string(waveOf(1)), "no"),
			`the sample at byte 165: column "clip" is no sound`},
		"no feature": {"tfrecord:?audio=clp", records(sound), `?audio= names "clp", and there are "clip"`},
		"no text":    {"tfrecord:?text=clp", records(sound), `?text= names "clp", and there are "clip"`},
		"no raw":     {"tfrecord:?raw=clp", records(sound), `?raw= names "clp", and there are "clip"`},
		"raw numbers": {"tfrecord:?raw=clip", records([]byte{0x1a, 2, 8, 1}),
			`?raw= names "clip", which does not hold bytes`},
		"numbers": {"tfrecord:?audio=clip", records([]byte{0x1a, 2, 8, 1}),
			`?audio= names "clip", which does not hold bytes`},
		"several": {"tfrecord:?audio=clip", records(bytesOfFeature(nil, nil)), `which has several byte strings`},
		"named": {"tfrecord:?audio=clip", records(sound, bytesOfFeature([]byte("no"))),
			`feature "clip" is no sound that is read (wav, flac): it is no RIFF/WAVE file`},
		"missing": {"tfrecord:?audio=clip", records(sound, nil), `feature "clip" is not one byte string`},
		"adpcm": {"tfrecord:", records(bytesOfFeature(odd)),
			"1 channels of 16 bits in the format 17; larder reads PCM of 8 to 32 bits and floats; ?raw= gives its bytes"},
	} {
		f, a := address(t, c.uri)
		if _, _, _, err := readAll(f, a, c.d, c.d.main()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	f, a := address(t, "tfrecord:") // of some sound, some not, all stay bytes
	s, _, _, err := readAll(f, a, records(sound, bytesOfFeature([]byte("no"))), "/d/a.tfrecord")
	if err != nil || len(s.Fields) != 1 || s.Fields[0].Kind != record.Bytes {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestRatesOfSoundAreProperties: of MDS also where the uri names other fields.
func TestRatesOfSoundAreProperties(t *testing.T) {
	d := soundSets(t)["mds:?audio=clip"]
	_, a := address(t, "mds:?audio=clip&fields=jpg")
	names, err := mds{}.PropertyNames(t.Context(), a, []string{"/d/a.mds"}, d.open)
	if err != nil || !slices.Equal(names, []string{"clip_rate"}) {
		t.Errorf("%q, %v", names, err)
	}
	s, got, _, err := readAll(mds{}, ForProperty(a, "clip_rate"), d, "/d/a.mds")
	if err != nil || len(got) != 14 || show(t, &s, got[1]) != "clip_rate=[][16000]" {
		t.Errorf("%q, %v", got, err)
	}
}

// countHearing has rows count the files of sound that they decode, and those that they read the rate of alone.
func countHearing(t *testing.T, rows Rows, decoded, rates *int) {
	t.Helper()
	counted := func(b []byte, rateOnly bool) (samples, rate record.Content, err error) {
		if rateOnly {
			*rates++
		} else {
			*decoded++
		}
		return hear(b, rateOnly)
	}
	switch r := rows.(type) {
	case *parquetRows:
		r.hear = counted
	case *hfRows:
		r.hear = counted
	case *mdsRows:
		r.hear = counted
	case *lmdbRows:
		r.hear = counted
	case *tfRows:
		r.hear = counted
	case *packedTF:
		r.hear = counted
	default:
		t.Fatalf("%T has no sound", rows)
	}
}

// soundTables returns a folder with datasets of sound that the formats' own writers made, and the uri of each by its
// name. They write new ones in the nightly lane.
func soundTables(t *testing.T) (folder string, uris map[string]string) {
	t.Helper()
	uris = map[string]string{}
	if lane.Nightly() {
		out := t.TempDir()
		for name, uri := range written(t, out, "4", "sounds", "sounds_packed") {
			uris[strings.TrimPrefix(name, "4/")] = uri
		}
		return filepath.Join(out, "4"), uris
	}
	folder, err := filepath.Abs(filepath.Join(root, "python", "tests", "golden", "tables"))
	if err != nil {
		t.Fatal(err)
	}
	wants, err := filepath.Glob(filepath.Join(folder, "want", "*.json"))
	if err != nil || len(wants) == 0 {
		t.Fatalf("no golden files in %s: %v", folder, err)
	}
	for _, f := range wants {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var want struct{ URI string }
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		scheme, rest, _ := strings.Cut(want.URI, ":")
		uris[strings.TrimSuffix(filepath.Base(f), ".json")] = scheme + ":" + filepath.Join(folder, rest)
	}
	return folder, uris
}

// TestASoundIsReadAndDecodedOnce: a sound gives two fields, and takes the reads of one of them. For its rate alone
// nothing is decoded.
func TestASoundIsReadAndDecodedOnce(t *testing.T) {
	_, uris := soundTables(t)
	for _, c := range []struct{ name, field string }{
		{"sounds_hf", "audio"}, {"sounds_parquet", "audio"}, {"sounds_named", "clip"}, {"mds_sounds", "clip"},
		{"lmdb_sounds", "audio"}, {"tfrecord_sounds", "clip"}, {"tfrecord_sounds_gzip", "clip"},
	} {
		uri, _, _ := strings.Cut(uris[c.name], "&fields=")
		and := "?fields="
		if strings.Contains(uri, "?") {
			and = "&fields="
		}
		reads := map[string]countedReads{}
		for _, fields := range []string{c.field, rateName(c.field)} {
			d, err := describe(uri+and+fields, nil)
			if err != nil {
				t.Fatal(c.name, err)
			}
			file, err := fileSet(nil).file(d.files[0], &d.schema)
			if err != nil {
				t.Fatal(err)
			}
			in := &countedReads{r: file.ReaderAt}
			file.ReaderAt = in
			var samples []Sample
			if _, err := d.format.Scan(t.Context(), d.Address, file, func(x Sample) error {
				samples = append(samples, x)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			rows, err := d.format.Open(t.Context(), d.Address, file)
			if err != nil {
				t.Fatal(err)
			}
			var decoded, rates int
			countHearing(t, rows, &decoded, &rates)
			in.reads, in.bytes = 0, 0
			for _, x := range samples {
				blob, err := rows.Record(t.Context(), nil, x)
				if err == nil {
					err = d.schema.Validate(blob, 0)
				}
				if err != nil {
					t.Fatalf("%s: %s: %v", c.name, x.Key, err)
				}
			}
			want := [2]int{len(samples), 0}
			if fields != c.field {
				want = [2]int{0, len(samples)}
			}
			if len(samples) == 0 || want != [2]int{decoded, rates} {
				t.Errorf("%s?fields=%s: %d sounds decoded, and of %d the rate alone, for %d samples", c.name, fields, decoded,
					rates, len(samples))
			}
			reads[fields] = countedReads{reads: in.reads, bytes: in.bytes}
		}
		if both, one := reads[c.field], reads[rateName(c.field)]; both != one || one.bytes == 0 {
			t.Errorf("%s: %d reads of %d bytes, and for the rate alone %d of %d", c.name, both.reads, both.bytes, one.reads,
				one.bytes)
		}
	}
}

// TestValuesOfLMDBThatAreSound: what the first values are says what all are, unless ?value= does.
func TestValuesOfLMDBThatAreSound(t *testing.T) {
	folder, _ := soundTables(t)
	mixed := "lmdb:" + filepath.Join(folder, "lmdb_mixed")
	if _, err := describe(mixed, nil); err == nil ||
		!strings.Contains(err.Error(), "of its first 3 values 2 are files of sound; ?value=audio or ?value=bytes says") {
		t.Errorf("%v", err)
	}
	d, err := describe(mixed+"?value=audio&fields=audio", nil)
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	heard := 0
	if err := d.each(nil, func(x Sample, blob []byte, err error) error {
		if err != nil {
			bad = append(bad, x.Key+" "+err.Error())
			return nil
		}
		heard++
		want := "audio=[1 4]float32" + strings.Repeat("00000000", 4) + " audio_rate=[][8000]"
		if got := show(t, &d.schema, blob); got != want {
			t.Errorf("%s is %s, not %s", x.Key, got, want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if heard != 2 || len(bad) != 1 || !strings.HasPrefix(bad[0], "data.mdb/c at byte ") ||
		!strings.HasSuffix(bad[0], ": its value is no sound that is read (wav, flac): it is no RIFF/WAVE file; ?value=bytes "+
			"gives values as they are") {
		t.Errorf("%d sounds, bad %q", heard, bad)
	}
}

// TestWaveOf keeps the helper honest.
func TestWaveOf(t *testing.T) {
	got, rate, err := hear(waveOf(-32768, 1), false)
	if err != nil || !slices.Equal(got.Dims, []int64{1, 2}) || leUint(rate.Data) != 16000 ||
		math.Float32frombits(binary.LittleEndian.Uint32(got.Data)) != -1 {
		t.Error(got, rate, err)
	}
}

// TestSoundIsBounded: a .wav has the bound of a .flac, checked before anything is decoded.
func TestSoundIsBounded(t *testing.T) {
	b := append(waveOf(), make([]byte, maxSound/4+1)...)
	le := binary.LittleEndian
	le.PutUint16(b[34:], 8) // bits
	for data, want := range map[uint32]string{
		maxSound/4 + 1: "it says that it has 134217729 samples, and 134217728 are the most",
		math.MaxUint32: "it says that it has 134217729 samples, and 134217728 are the most",
		maxSound/4 + 2: `its part "data" says 134217730 bytes, and 134217729 are left: it is cut`,
	} { // order-free: each by itself
		le.PutUint32(b[40:], data)
		for _, rateOnly := range []bool{false, true} {
			if _, _, err := wave(b, rateOnly); err == nil || err.Error() != want {
				t.Errorf("%d bytes: %v", data, err)
			}
		}
	}
	le.PutUint32(b[40:], maxSound/4)
	if none, rate, err := wave(b, true); err != nil || none.Data != nil || leUint(rate.Data) != 16000 {
		t.Errorf("%v, %v", rate, err)
	}
}
