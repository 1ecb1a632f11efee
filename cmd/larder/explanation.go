package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// explanation is what larder explain says: sentences, each under a topic.
type explanation struct{ sentences []sentence }

type sentence struct{ topic, text string }

// say adds a sentence; the topic is one word.
func (x *explanation) say(topic, format string, a ...any) {
	x.sentences = append(x.sentences, sentence{topic, printable(fmt.Sprintf(format, a...))})
}

// textColumns is how wide the text beside the topics may be: with them, a line of a usual terminal.
const textColumns = 88

// write prints each sentence from a line of its own, in short lines beside a column of topics. A topic stands at the
// first of its sentences only.
func (x *explanation) write(w io.Writer) error {
	width, last := 0, ""
	for _, s := range x.sentences {
		width = max(width, len(s.topic))
	}
	var b strings.Builder
	for _, s := range x.sentences {
		topic := s.topic
		if topic == last {
			topic = ""
		}
		last = s.topic
		for i, line := range wrap(s.text, textColumns) {
			indent := ""
			if i > 0 {
				topic, indent = "", "  "
			}
			fmt.Fprintf(&b, "%-*s  %s%s\n", width, topic, indent, line)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap divides a text at its blanks into lines of at most so many characters; a longer word has a line of its own.
func wrap(text string, columns int) (lines []string) {
	line, n := "", 0
	for word := range strings.FieldsSeq(text) {
		k := utf8.RuneCountInString(word)
		switch {
		case line == "":
			line, n = word, k
		case n+1+k <= columns:
			line, n = line+" "+word, n+1+k
		default:
			lines = append(lines, line)
			line, n = word, k
		}
	}
	return append(lines, line)
}
