(section . [(atx_heading heading_content: (_) @name) (setext_heading heading_content: (_) @name)]) @section
