// Package plot draws pictures of measurements as inline SVG: lines, steps, groups of bars, stacked bars, spans of time,
// and triangles of splits. A Plot is data, and can be read from JSON; SVG draws it.
//
// Colours and line styles are classes (c0 to c7, ink; whole, dot, mix, bold, dash), so that a picture suits a light and
// a dark page: the style sheet PictureStyle defines them. Every name is escaped here, once: it becomes text,
// never markup.
package plot
