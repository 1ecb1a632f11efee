// Package docs holds no code: its tests check the links and the navigation of the pages.
package docs
