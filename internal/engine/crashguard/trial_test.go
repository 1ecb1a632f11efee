package crashguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"larder/internal/prep"
	"larder/internal/testenv"
)

// trialEnv makes this test binary the process for trials. Its value is a file for what is to happen once.
const trialEnv = "LARDER_TEST_TRIAL"

func TestMain(m *testing.M) {
	if os.Getenv(trialEnv) != "" {
		if err := Serve(os.Stdin, os.Stdout, poisoned); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// poisoned crashes as the stored bytes say. No real image crashes the decoder, as far as is known.
func poisoned(x Charge, enc []byte) {
	_, what, found := bytes.Cut(enc, []byte("poison-"))
	if !found {
		x.Prepare(enc)
		return
	}
	signals := map[string]syscall.Signal{"SEGV": syscall.SIGSEGV, "ABRT": syscall.SIGABRT, "KILL": syscall.SIGKILL}
	switch word := string(what); word {
	case "once":
		if f, err := os.OpenFile(os.Getenv(trialEnv), os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = f.Close()
			_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
			select {}
		}
	case "exit":
		os.Exit(7)
	case "memory":
		fmt.Fprintln(os.Stderr, "fatal error: runtime: out of memory")
		os.Exit(2)
	case "hang":
		_ = os.WriteFile(os.Getenv(trialEnv)+".hangs", nil, 0o600)
		for n := 0; ; n++ {
			_ = n
		}
	case "panic":
		panic("planned")
	default:
		_ = syscall.Kill(os.Getpid(), signals[word])
		select {}
	}
}

func picture(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewRGBA(image.Rect(0, 0, 20, 16)), nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What becomes of the process for trials says what the image is: only what it does to itself, twice, and again, makes
// it bad.
func TestTrial(t *testing.T) {
	t.Setenv(trialEnv, filepath.Join(t.TempDir(), "once"))
	image := picture(t)
	poisoned := func(word string) []byte { return append(bytes.Clone(image), "poison-"+word...) }
	self := []string{os.Args[0]}
	try := func(ctx context.Context, command []string, enc []byte, l prep.Limits) (string, error) {
		c := trials{command: command}
		how, _, err := c.try(ctx, Charge{Limits: l}, enc)
		return how, err
	}
	for what, c := range map[string]struct {
		command []string
		enc     []byte
		how     string
		err     string
	}{
		"an image":               {self, image, "", ""},
		"no image":               {self, []byte("hello"), "", ""},
		"nothing":                {self, nil, "", ""},
		"a cut image":            {self, image[:len(image)/2], "", ""},
		"one that panics":        {self, poisoned("panic"), "", ""},
		"SIGSEGV":                {self, poisoned("SEGV"), "SIGSEGV", ""},
		"SIGABRT":                {self, poisoned("ABRT"), "SIGABRT", ""},
		"an exit":                {self, poisoned("exit"), "exit 7", ""},
		"no end":                 {self, poisoned("hang"), "hang", ""},
		"one crash of three":     {self, poisoned("once"), "", ""},
		"another killed it":      {self, poisoned("KILL"), "", "SIGKILL"},
		"no memory":              {self, poisoned("memory"), "", "memory"},
		"no command":             {nil, image, "", "no command"},
		"no such command":        {[]string{"/does/not/exist"}, image, "", "start"},
		"another command":        {[]string{"/bin/true"}, image, "", "before it began"},
		"one that says nonsense": {[]string{"/bin/echo", "hello"}, image, "", "before it began"},
	} {
		how, err := try(t.Context(), c.command, c.enc, prep.Limits{Timeout: 50 * time.Millisecond})
		if how != c.how || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", what, how, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if how, err := try(ctx, self, image, prep.Limits{}); how != "" || !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %q, %v", how, err)
	}
	hangs := os.Getenv(trialEnv) + ".hangs"
	if err := os.Remove(hangs); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan string, 1)
	go func() {
		how, err := try(ctx, self, poisoned("hang"), prep.Limits{Timeout: time.Hour})
		ended <- fmt.Sprintf("%q, %v", how, errors.Is(err, context.Canceled))
	}()
	testenv.Eventually(t, "it is in its midst", func() bool { _, err := os.Stat(hangs); return err == nil })
	cancel()
	if s := <-ended; s != `"", true` {
		t.Errorf("canceled in its midst: %s", s)
	}
}
