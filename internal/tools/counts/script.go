package main

import (
	"bytes"
	_ "embed" // the script in Python
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
)

//go:embed python.py
var script string

// pythonFile holds the findings of the script in one file.
type pythonFile struct {
	Methods, Fields, Parameters numbers
	Texts, Comments             []string
}

type pythonCode struct {
	Files  map[string]pythonFile
	Public []string // modules, classes and functions that users call
}

var pythonPackages = []string{"python/larder"}

// countPython lets Python parse its own language.
func (t *tree) countPython(into numbers, files []string) error {
	if len(files) == 0 {
		return nil
	}
	request, err := json.Marshal(map[string]any{"root": t.root, "files": files, "packages": pythonPackages})
	if err != nil {
		return err
	}
	cmd := exec.Command(t.python, "-I", "-c", script)
	cmd.Stdin = bytes.NewReader(request)
	out, err := cmd.Output()
	if err != nil {
		if exit, is := errors.AsType[*exec.ExitError](err); is {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return fmt.Errorf("counting Python with %s: %w (-python names another; make setup installs one)", t.python, err)
	}
	var code pythonCode
	if err := json.Unmarshal(out, &code); err != nil {
		return fmt.Errorf("counting Python: %w", err)
	}
	code.result(into)
	return nil
}

func (c *pythonCode) result(into numbers) {
	public := slices.Clone(c.Public)
	for name := range c.Files {
		if slices.Contains(pythonPackages, path.Dir(name)) && !strings.HasPrefix(path.Base(name), "_") {
			public = append(public, strings.TrimSuffix(name, ".py"))
		}
	}
	for name, f := range c.Files {
		for _, text := range f.Texts {
			countPhrases(into, text)
		}
		for _, text := range f.Comments {
			countIsWhat(into, text)
		}
		if isTest(name) {
			continue
		}
		for key, n := range f.Methods {
			into["methods."+key] = n
		}
		for key, n := range f.Fields {
			into["fields."+key] = n
		}
		for key, n := range f.Parameters {
			family := "parameters."
			if isPublic(public, key) {
				family = "arguments."
			}
			into[family+key] = n
		}
	}
}

// isPublic says whether a function is one of those that are public, or a method or member of one without underscore.
func isPublic(public []string, key string) bool {
	return slices.ContainsFunc(public, func(p string) bool {
		rest, below := strings.CutPrefix(key, p+".")
		if key == p {
			return true
		}
		if !below {
			return false
		}
		for part := range strings.SplitSeq(rest, ".") {
			if strings.HasPrefix(part, "_") && part != "__init__" && part != "__call__" {
				return false
			}
		}
		return true
	})
}
