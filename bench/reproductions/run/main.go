// Command run computes reproductions and writes what they print:
//
//	go run larder/bench/reproductions/run [-write] [NAME…]
//
// Without -write it compares with expected.json and exits with 1 when something differs. With -write it writes
// expected.json of those that it ran, and docs/reproductions.md of all. It runs in the root of the repository.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"larder/bench/reproductions"
)

func main() {
	write := flag.Bool("write", false, "write expected.json and the page")
	flag.Parse()
	if err := run(*write, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(write bool, names []string) error {
	if len(names) == 0 {
		for _, r := range reproductions.All() {
			names = append(names, r.Name)
		}
	}
	failed := 0
	for _, name := range names {
		r, err := reproductions.Run(name)
		if err != nil {
			return err
		}
		for _, row := range r.Rows {
			fmt.Printf("%s: %s: published %s, ours %v: %s\n", name, row.What, row.Published, row.Ours, row.Verdict)
		}
		raw, err := r.Marshal()
		if err != nil {
			return err
		}
		path := filepath.Join("bench", "reproductions", name, "expected.json")
		if write {
			if err := os.WriteFile(path, raw, 0o644); err != nil { //nolint:gosec // a file of the repository
				return err
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(want, raw) {
			failed++
			fmt.Printf("%s: this is not what %s has\n", name, path)
		}
	}
	if write {
		return writePage()
	}
	if failed > 0 {
		return fmt.Errorf("%d reproductions changed; run with -write when that is meant", failed)
	}
	return nil
}

// writePage makes docs/reproductions.md of what every reproduction printed last.
func writePage() error {
	results, err := reproductions.Expected(filepath.Join("bench", "reproductions"))
	if err != nil {
		return err
	}
	page := []byte(reproductions.Page(results))
	return os.WriteFile(filepath.Join("docs", "reproductions.md"), page, 0o644) //nolint:gosec // a page of the repository
}
