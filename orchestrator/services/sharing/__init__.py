"""Jobs that share links: when each of them sends (`testbed job phases`), and their shifts (`testbed coordinate`)."""
