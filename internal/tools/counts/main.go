package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	var o options
	check := flag.Bool("check", false, "compare the tree and its history with "+countsFile)
	write := flag.Bool("update", false, "write the numbers that fell, and the sizes")
	flag.StringVar(&o.root, "root", ".", "the folder of the repository")
	flag.StringVar(&o.binary, "binary", "bin/larder", "the built program, relative to the root; none: it is not measured")
	flag.StringVar(&o.python, "python", "", "the Python that parses Python (.venv/bin/python, or python3)")
	flag.Parse()
	if *check == *write || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "counts: give either -check or -update")
		os.Exit(2)
	}
	o.update = *write
	report, err := o.run()
	for _, note := range report.notes {
		fmt.Println("counts: " + note)
	}
	for _, p := range report.problems {
		fmt.Println("counts: " + p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "counts:", err)
		os.Exit(1)
	}
	if len(report.problems) > 0 {
		fmt.Printf("counts: %d breaches of %s; its header says what to do\n",
			len(report.problems), countsFile)
		os.Exit(1)
	}
}

type options struct {
	root, binary, python string
	update               bool
}

// report collects notes, and problems that turn a run red.
type report struct{ notes, problems []string }

func (r *report) note(text string)     { r.notes = append(r.notes, text) }
func (r *report) wrong(text ...string) { r.problems = append(r.problems, text...) }

func (o options) run() (report, error) {
	var r report
	if o.python == "" {
		o.python = "python3"
		if own := filepath.Join(o.root, ".venv", "bin", "python"); exists(own) {
			o.python, _ = filepath.Abs(own)
		}
	}
	file, err := o.file()
	if err != nil {
		return r, err
	}
	measured, err := o.measure(&r, file)
	if err != nil {
		return r, err
	}
	if o.update {
		err := o.write(&r, file, measured)
		return r, err
	}
	if file == nil {
		return r, fmt.Errorf("%s is missing: run `make counts`, or restore it from git", countsFile)
	}
	r.wrong(compare(file, listed(measured))...)
	repo := repository{root: o.root, python: o.python}
	history, head, note, err := repo.history()
	if err != nil {
		return r, err
	}
	switch {
	case note != "" && os.Getenv("CI") != "":
		r.wrong(note + ", and CI must check them all: give it the whole history (git fetch --unshallow)")
	case note != "":
		r.note(note)
	}
	r.wrong(judgeAll(history, file, repo.after)...)
	problems, lines := pending(head, file, measured)
	r.wrong(problems...)
	for _, line := range lines {
		r.note("the next commit's message needs the line `" + line + "`")
	}
	return r, nil
}

// file reads the counts of the working tree; nil if there are none.
func (o options) file() (numbers, error) {
	text, err := os.ReadFile(filepath.Join(o.root, countsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the counts: %w", err)
	}
	file, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", countsFile, err)
	}
	return file, nil
}

// measure returns all numbers of the tree, those too that no line lists.
func (o options) measure(r *report, file numbers) (numbers, error) {
	t, err := openTree(o.root, o.python)
	if err != nil {
		return nil, err
	}
	measured, err := t.measure()
	if err != nil {
		return nil, err
	}
	if !t.has(waitsFile) && file["waits.entries"] > 0 {
		measured["waits.entries"] = 0
	}
	info, err := os.Stat(filepath.Join(o.root, o.binary))
	if err != nil || o.binary == "" {
		r.note("the binary was not measured: `make build` makes it")
		return measured, nil
	}
	countBinary(measured, file, info.Size())
	return measured, nil
}

func (o options) write(r *report, file, measured numbers) error {
	if file == nil {
		file = listed(measured)
	}
	out, message, refused := update(file, measured)
	r.wrong(refused...)
	for _, line := range message {
		r.note("the commit's message needs the line `" + line + "`")
	}
	name := filepath.Join(o.root, countsFile)
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return fmt.Errorf("writing the counts: %w", err)
	}
	if err := os.WriteFile(name, []byte(format(out)), 0o666); err != nil {
		return fmt.Errorf("writing the counts: %w", err)
	}
	return nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
