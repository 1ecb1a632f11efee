package ident

import "testing"

func TestForms(t *testing.T) {
	seen := map[string]bool{}
	for f := range NumForms {
		s := f.String()
		if s == "" || seen[s] || s[0] < 'a' || s[0] > 'z' || len(s) > 4 && s[:5] == "form(" {
			t.Errorf("form %d is called %q", uint8(f), s)
		}
		seen[s] = true
	}
	if Stored >= Encoded || Encoded >= Decoded || Decoded >= Augmented || Augmented >= NumForms {
		t.Error("the forms are not in the order of work done")
	}
	if got := NumForms.String(); got != "form(4)" {
		t.Errorf("an unknown form is called %q", got)
	}
}

// The words are in logs, metrics and file names of users: they do not change by accident.
func TestWords(t *testing.T) {
	if got := RecipeID(0xabc).String(); got != "0000000000000abc" {
		t.Errorf("recipe %q", got)
	}
	k := Key{Object: 7, Form: Augmented, Recipe: 1 << 63, Group: 2, Instance: 3}
	if got := k.String(); got != "augmented:7/8000000000000000.2.3" {
		t.Errorf("key %q", got)
	}
	if a, b := (Key{Object: 1, Group: 23, Instance: 4}).String(), (Key{Object: 1, Group: 2,
		Instance: 34}).String(); a == b {
		t.Errorf("two keys are called %q", a)
	}
}
